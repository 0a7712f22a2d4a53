"""Secrets of principals come from the sources that the operator declared."""

import sys
from pathlib import Path

import pytest

from gateway.config.secrets import SecretSettings
from gateway.context.principal_secrets import PrincipalSecrets, is_template, with_paths
from session_store import Principal
from tests.requirements import requirement
from transports.upstream_port import UpstreamUnavailable


@requirement("wall.secrets")
async def test_a_name_reaches_no_variable_of_the_gateways_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_GATEWAY_KEYS", "the signing keys")
    monkeypatch.setenv("MCP_GATEWAY_alice", "hers")
    secrets = PrincipalSecrets({"word": SecretSettings(env="MCP_GATEWAY_{subject}")}, ["api-key"])
    for subject in ("KEYS", "alice"):
        with pytest.raises(UpstreamUnavailable):
            await secrets.current({"T": "${secret:word}"}, Principal(issuer="api-key", subject=subject))


@requirement("wall.secrets")
async def test_the_log_names_the_source_that_could_not_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    garbled = (sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'pass' + bytes([255]))")
    sources = {
        "file": SecretSettings(file=f"{tmp_path}/{{subject}}"),
        "program": SecretSettings(command=(f"{tmp_path}/vault",)),
        "garbled": SecretSettings(command=garbled),
    }
    secrets = PrincipalSecrets(sources, ["api-key"])
    for name in sources:
        with pytest.raises(UpstreamUnavailable, match="there is no credential"):
            await secrets.current({"T": f"${{secret:{name}}}"}, Principal(issuer="api-key", subject="ada"))
    assert caplog.messages == [
        f"gateway.secrets.file could not be read: {tmp_path}/ada: No such file or directory",
        f"gateway.secrets.program could not be read: {tmp_path}/vault: No such file or directory",
        "gateway.secrets.garbled could not be read: UnicodeDecodeError",
    ]


@requirement("cred.refresh")
def test_a_process_does_not_start_without_a_file_that_its_variables_name() -> None:
    values = {"A": "${secret_file:files}", "B": "at ${secret_file:more}!"}
    assert with_paths(values, {"files": "/f/0", "more": "/f/1"}) == {"A": "/f/0", "B": "at /f/1!"}
    with pytest.raises(UpstreamUnavailable, match="no file of credential 'more'"):
        with_paths(values, {"files": "/f/0"})


@requirement("wall.secrets")
async def test_a_placeholder_after_a_dollar_is_text_and_so_is_one_in_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "${secret:other} $${secret:word}")
    monkeypatch.setenv("OTHER", "other")
    sources = {name: SecretSettings(env=name.upper()) for name in ("word", "other")}
    secrets = PrincipalSecrets(sources, ["api-key"])
    values = {"A": "$${secret:word} $${secret_file:none}", "B": "${secret:word}, ${secret:other}", "C": "$$$"}
    assert is_template(values["A"]), "it has to be filled in, too"
    paths = with_paths(values | {"D": "${secret_file:word}"}, {"word": "/f/0"})
    found = await secrets.current(paths, Principal(issuer="api-key", subject="ada"))
    assert found.values == {
        "A": "${secret:word} ${secret_file:none}",
        "B": "${secret:other} $${secret:word}, other",
        "C": "$$$",
        "D": "/f/0",
    }
