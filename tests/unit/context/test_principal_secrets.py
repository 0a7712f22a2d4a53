"""Secrets of principals come from the sources that the operator declared."""

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
            await secrets.fill({"T": "${secret:word}"}, Principal(issuer="api-key", subject=subject))


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
    assert await secrets.fill(paths, Principal(issuer="api-key", subject="ada")) == {
        "A": "${secret:word} ${secret_file:none}",
        "B": "${secret:other} $${secret:word}, other",
        "C": "$$$",
        "D": "/f/0",
    }
