"""The wire above HTTP, as strangers use it: versions, tokens that are not enough, batches."""

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import bearer
from tests.requirements import requirement
from tests.support.issuer import Issuer, running_issuer
from tests.support.raw import Legacy, Modern, tool_text
from tests.support.running import DEMO, RunningGateway, running_gateway, server


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as running:
        yield running


@pytest.fixture(scope="module")
def tokens(issuer: Issuer) -> Iterator[RunningGateway]:
    """Serves tokens of the issuer, with the scope `mcp`."""
    with running_gateway({"demo": server(DEMO)}, options={"auth": issuer.settings()}) as running:
        yield running


@requirement("wall.authority")
@pytest.mark.parametrize("version", ["2020-01-01", "nonsense", "", "2025-11-25, 2025-11-25"])
def test_a_delete_or_get_of_an_unknown_version_ends_and_opens_nothing(
    demo: RunningGateway, http: httpx.Client, version: str
) -> None:
    client = Legacy(demo.url, http).open()
    named = {**client.request_headers(), "Accept": "text/event-stream", "MCP-Protocol-Version": version}
    assert http.delete(demo.url, headers=named).status_code == 400
    assert http.get(demo.url, headers=named).status_code == 400
    assert tool_text(client.tool("count")) == "1", "it lives"
    assert client.delete().status_code == 200


@requirement("wall.authority", "pol.auth")
def test_a_token_that_does_not_go_far_enough_is_told_what_it_needs(
    tokens: RunningGateway, issuer: Issuer, http: httpx.Client
) -> None:
    for scope in ("other", "", None):
        answer = Modern(tokens.url, http, headers=bearer(issuer.token(scope=scope))).tool("whoami")
        challenge = answer.headers["www-authenticate"]
        assert answer.status_code == 403 and answer.json()["error"]["code"] == -32011
        assert challenge.startswith("Bearer ") and 'error="insufficient_scope"' in challenge
        assert 'scope="mcp"' in challenge and "resource_metadata=" in challenge
    assert Modern(tokens.url, http, headers=bearer(issuer.token(scope="mcp other"))).tool("whoami").status_code == 200


@requirement("wall.authority", "pol.auth")
@pytest.mark.parametrize("bound", [{"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}, {"x5t#S256": "bwc"}, {}])
def test_a_token_that_is_bound_to_a_key_is_no_bearer_token(
    tokens: RunningGateway, issuer: Issuer, http: httpx.Client, bound: dict[str, str]
) -> None:
    answer = Modern(tokens.url, http, headers=bearer(issuer.token(cnf=bound))).tool("whoami")
    assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "bound to a key" in answer.text
