"""What policy decides on cannot come by another door: without an id, in a batch, or as a method of the other era."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import WORK, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text

CALL = {"name": "work", "arguments": {"job": "hidden"}}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "ledger"


@pytest.fixture(scope="module")
def gateway(ledger: Path) -> Iterator[RunningGateway]:
    """Two servers that execute requests without an id, as JSON-RPC permits. One tool of each is hidden."""
    env = {"LEDGER": str(ledger), "ANSWERS_NOTIFICATIONS": "1"}
    servers = {era: server((*WORK, era), env=env, hidden_tools=["work"]) for era in ("legacy", "modern")}
    with running_gateway(servers) as running:
        yield running


@requirement("pol.doors")
@pytest.mark.parametrize("path", ["/mcp", "/servers/legacy/mcp", "/servers/modern/mcp"])
def test_a_request_without_an_id_reaches_no_server(
    gateway: RunningGateway, http: httpx.Client, ledger: Path, path: str
) -> None:
    for version in ("2025-11-25", "2025-03-26"):
        client = Legacy(f"{gateway.base}{path}", http, version=version).open()
        look = "legacy__look" if path == "/mcp" else "look"
        assert tool_text(client.tool(look, {"job": "before"})) == "done before"
        for name in ("work", "legacy__work"):
            params = CALL | {"name": name}
            assert client.notify("tools/call", params).status_code == 202
            if version == "2025-03-26":
                body = [{"jsonrpc": "2.0", "method": "tools/call", "params": params}]
                assert client.post(body).status_code == 202
        client.notify("tasks/cancel", {"taskId": "1"})
        assert tool_text(client.tool(look, {"job": "after"})) == "done after"
    assert "hidden" not in ledger.read_text(encoding="utf-8")


@requirement("pol.doors")
def test_requests_of_the_other_era_reach_no_server(gateway: RunningGateway, http: httpx.Client) -> None:
    old, new = Legacy(gateway.url, http).open(), Modern(gateway.url, http)
    for method in ("subscriptions/listen", "server/discover", "tasks/update", "sampling/createMessage"):
        refused = old.call(method, {"notifications": {"taskIds": ["1"]}})
        assert messages(refused)[-1]["error"]["code"] == -32601, refused.text
    for method in ("tasks/list", "tasks/result", "roots/list", "notifications/initialized"):
        answer = new.send(method)
        assert (answer.status_code, messages(answer)[-1]["error"]["code"]) == (404, -32601), answer.text
