"""Every error answer has the correlation id of its request, and says nothing of what raised it."""

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from session_store import MemoryBackend
from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import DEMO, RunningGateway, server
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, messages, modern_body, modern_headers
from tests.support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
SERVER_ERROR = '{"jsonrpc":"2.0","id":ID,"error":{"code":-32050,"message":"no disk","data":%s}}'


def error_of(response: httpx.Response) -> Any:
    """The last JSON-RPC error of a response."""
    found = messages(response)[-1]
    return (found[-1] if isinstance(found, list) else found)["error"]


def legacy(gateway: RunningGateway, http: httpx.Client, server: str = "probe") -> Legacy:
    return Legacy(gateway.at(server), http)


Way = Callable[[RunningGateway, httpx.Client], httpx.Response]

WAYS: dict[str, tuple[int, Way]] = {
    "not JSON": (
        -32700,
        lambda g, h: h.post(g.url, content=b"{", headers={**ACCEPT, "Content-Type": "application/json"}),
    ),
    "no JSON-RPC": (-32600, lambda g, h: h.post(g.url, json={}, headers=ACCEPT)),
    "not acceptable": (-32600, lambda g, h: h.post(g.url, json={}, headers={"Accept": "text/plain"})),
    "another host": (-32600, lambda g, h: h.post(g.url, json={}, headers={**ACCEPT, "Host": "evil.example"})),
    "no stream": (-32600, lambda g, h: h.get(g.url)),
    "forged session": (-32010, lambda g, h: Modern(g.url, h).tool("pid", headers={"MCP-Gateway-Session": "x.y"})),
    "unknown session ended": (
        -32010,
        lambda g, h: h.delete(g.url, headers={"Mcp-Session-Id": "x.y"}),
    ),
    "notification": (
        -32010,
        lambda g, h: Legacy(g.url, h, headers={"Mcp-Session-Id": "x.y"}).notify("notifications/initialized"),
    ),
    "no session": (-32600, lambda g, h: Legacy(g.url, h).call("tools/list")),
    "header mismatch": (-32020, lambda g, h: Modern(g.url, h).tool("pid", headers={"Mcp-Name": "other"})),
    "unknown tool": (-32602, lambda g, h: Modern(g.url, h).tool("nobody__nothing")),
    "server error": (
        -32050,
        lambda g, h: legacy(g, h).open().tool("broken", {"line": SERVER_ERROR % '{"free":0}'}),
    ),
    "crash": (-32014, lambda g, h: legacy(g, h).open().tool("crash")),
    "modern crash": (-32014, lambda g, h: Modern(g.at("probe"), h).tool("crash")),
    "refused handshake": (-32099, lambda g, h: legacy(g, h, "refusing").initialize()),
    "no server": (-32013, lambda g, h: legacy(g, h, "missing").initialize()),
    "batch": (
        -32600,
        lambda g, h: legacy_batch(g, h, [{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}]),
    ),
    "event stream": (-32600, lambda g, h: h.get(f"{g.base}/sse", headers={"Host": "evil.example"})),
    "posted to no stream": (-32600, lambda g, h: h.post(f"{g.base}/sse/messages?connection=x", json={})),
}


def legacy_batch(gateway: RunningGateway, http: httpx.Client, batch: list[Any]) -> httpx.Response:
    client = Legacy(gateway.at("probe"), http, version="2025-03-26").open()
    return client.post(batch)


@requirement("ctx.correlation-right", "pol.errors")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_an_error_names_its_request_and_the_log_has_it(probe: RunningGateway, http: httpx.Client, way: str) -> None:
    code, ask = WAYS[way]
    error = error_of(ask(probe, http))
    assert error["code"] == code, error
    correlation = error["data"]["correlation_id"]
    assert len(correlation) == 32

    def told() -> list[Any]:
        lines = [json.loads(line) for line in probe.stderr().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("correlation") == correlation and "outcome" in line]

    assert eventually(lambda: len(told()) == 1), told()
    (line,) = told()
    assert str(code) in line["outcome"] and line["reason"], line


@requirement("ctx.correlation-right")
def test_a_servers_error_keeps_its_data(probe: RunningGateway, http: httpx.Client) -> None:
    client = legacy(probe, http).open()
    client.headers |= PARENT
    for given, wanted in (
        ('{"free":0}', {"free": 0, "correlation_id": TRACE}),
        ("null", {"correlation_id": TRACE}),
        ('{"correlation_id":"mine"}', {"correlation_id": "mine"}),
        ('["a list"]', ["a list"]),
    ):
        error = error_of(client.tool("broken", {"line": SERVER_ERROR % given}))
        assert (error["message"], error["data"]) == ("no disk", wanted)


@requirement("ctx.correlation-right")
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_failed_tool_names_its_request(keyed: RunningGateway, http: httpx.Client, era: str) -> None:
    url, headers = keyed.at("probe"), PARENT | bearer(KEYS["alice"])
    if era == "modern":
        failed, good = (Modern(url, http, headers=headers).tool(name) for name in ("fail", "pid"))
    else:
        client = Legacy(url, http, headers=headers).open()
        failed, good = client.tool("fail"), client.tool("pid")
    result = messages(failed)[-1]["result"]
    trace = result["_meta"]["io.github.mcp-session-gateway/trace"]
    assert result["isError"] and trace["correlation_id"] == TRACE and len(trace["session"]) == 8
    assert "io.github.mcp-session-gateway/trace" not in messages(good)[-1]["result"].get("_meta", {})


@pytest.mark.anyio
@requirement("pol.errors", "ops.redact")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_fault_of_ours_is_an_error_like_others(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.model_validate({"mcpServers": {"demo": server(DEMO)}})
    store = MemoryBackend()
    app = create_app(settings, store=store)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        body = modern_body("tools/call", {"name": "count", "arguments": {}}, request_id=7)
        good = await http.post("/mcp", json=body, headers=modern_headers(body))
        assert "result" in good.json()
        token = {"MCP-Gateway-Session": good.headers["mcp-gateway-session"]}

        async def fails(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("the secret of /etc/passwd")

        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(store.sessions, "resume", fails)
            headers = (
                {**modern_headers(body), **token} if method == "POST" else {**token, "Accept": "text/event-stream"}
            )
            bad = await http.request(method, "/mcp", json=body if method == "POST" else None, headers=headers)
        assert bad.status_code == 500 and bad.json()["error"]["code"] == -32603, bad.text
        assert bad.json()["id"] == (7 if method == "POST" else None)
        assert "secret" not in bad.text and "ZeroDivision" not in bad.text and "ZeroDivision" in caplog.text
        again = await http.post("/mcp", json=body, headers={**modern_headers(body), **token})
        assert again.json()["result"]["content"][0]["text"] == "2", "nothing was lost"
