"""Secrets of principals come from the sources that the operator declared."""

import pytest

from gateway.config.secrets import SecretSettings
from gateway.context.principal_secrets import PrincipalSecrets, with_paths
from session_store import Principal
from tests.requirements import requirement
from transports.upstream_port import UpstreamUnavailable


@requirement("wall.secrets")
@pytest.mark.anyio
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
