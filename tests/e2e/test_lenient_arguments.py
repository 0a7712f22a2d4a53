"""Arguments that servers take are not refused on the way, and reach the server as the client wrote them."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import SCRIPTED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, failed_text, modern_body, modern_headers, tool_text


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway({era: server((*SCRIPTED, era)) for era in ("legacy", "modern")}) as running:
        yield running


@requirement("pol.lenient")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_arguments_that_a_server_may_take_reach_it(gateway: RunningGateway, http: httpx.Client, era: str) -> None:
    url = f"{gateway.base}/servers/{era}/mcp"
    legacy, modern = Legacy(url, http).open(), Modern(url, http)
    mine = {"MCP-Gateway-Session": modern.tool("got").headers["mcp-gateway-session"]}
    for sent in ('{"n":"3","region":null}', '{"n":1e400}', '{"n":-12345678901234567890}'):
        call = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "tools/call",
            "params": {"name": "number", "arguments": {"here": "is"}},
        }
        text = json.dumps(call).replace('{"here": "is"}', sent)
        headers = {"Content-Type": "application/json", **legacy.request_headers()}
        assert tool_text(http.post(url, content=text, headers=headers)) == "ok"
        body = modern_body("tools/call", {"name": "number", "arguments": {"here": "is"}})
        text = json.dumps(body).replace('{"here": "is"}', sent)
        headers = {"Content-Type": "application/json", **modern_headers(body), **mine}
        assert tool_text(http.post(url, content=text, headers=headers)) == "ok"
        assert any(f'"arguments":{sent}' in line for line in json.loads(tool_text(modern.tool("got", headers=mine))))
    assert tool_text(modern.tool("mirrored", {"region": None})) == "ok", "no header stands for no value"
    for client in (legacy, modern):
        assert 'arguments.n: "x" is not of type "integer"' in failed_text(client.tool("number", {"n": "x"}))
