"""HTTP+SSE carries sessions: by cookie or header, at the event stream or with a message, and never another's."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually

INFO = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
ALICE, BOB = bearer(KEYS["alice"]), bearer(KEYS["bob"])
TOKEN_KEY = "io.github.mcp-session-gateway/session"
RESTARTED_KEY = "io.github.mcp-session-gateway/restarted"
SIGNED = {"MCP_GATEWAY_KEYS": "k" * 40}


@pytest.fixture(scope="module")
def gateway(redis_server: RunningRedis) -> Iterator[RunningGateway]:
    options = {
        "sse": True,
        "store": redis_server.url,
        "api_keys": {name: sha256(KEYS[name]) for name in ("alice", "bob")},
        "allowed_origins": ["https://app.example"],
    }
    with running_gateway({"probe": server(PROBE)}, options=options, env=SIGNED) as running:
        yield running


class Stream:
    """A client with an open event stream. It sends cookies only where the test gives it some."""

    def __init__(self, response: httpx.Response, base: str, headers: dict[str, str]) -> None:
        self._lines = response.iter_lines()
        self._headers = headers
        self._last = 0
        self.response = response
        self.address = base + self.data()
        self.token = response.headers["mcp-gateway-session"]
        cookie = response.headers.get("set-cookie", "")
        self.cookie = {"Cookie": cookie.partition(";")[0]} if cookie else {}

    def data(self) -> str:
        while not (line := next(self._lines)).startswith("data: "):
            pass
        return line.removeprefix("data: ")

    def post(self, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(self.address, json=body, headers={**self._headers, **headers}, timeout=20)

    def ask(self, method: str, params: Any, headers: dict[str, str] | None = None) -> Any:
        self._last += 1
        body = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        assert self.post(body, **(headers or {})).status_code == 202
        while (answer := json.loads(self.data())).get("id") != self._last:
            pass
        return answer

    def initialize(self, headers: dict[str, str] | None = None) -> Any:
        result = self.ask("initialize", INFO, headers)["result"]
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, **(headers or {}))
        return result

    def tool(self, name: str, headers: dict[str, str] | None = None, **arguments: Any) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": arguments}, headers)

    def text(self, name: str, headers: dict[str, str] | None = None, **arguments: Any) -> str:
        return str(self.tool(name, headers, **arguments)["result"]["content"][0]["text"])

    def session(self) -> str:
        return str(json.loads(self.text("env", prefix="MCP_SESSION_ID"))["MCP_SESSION_ID"])


@contextlib.contextmanager
def opened(gateway: RunningGateway, headers: dict[str, str], sent: dict[str, str] | None = None) -> Iterator[Stream]:
    """An event stream; `sent` are further headers of the GET alone."""
    full = {**headers, **(sent or {})}
    with httpx.Client(timeout=20) as http, http.stream("GET", f"{gateway.base}/sse", headers=full) as response:
        assert response.status_code == 200
        yield Stream(response, gateway.base, headers)


def ended(gateway: RunningGateway, token: str, headers: dict[str, str]) -> bool:
    with httpx.Client(timeout=20) as http:
        client = Legacy(gateway.url, http, headers=headers)
        client.session = token
        return client.call("ping").status_code == 404


@requirement("spec.sse-session", "id.cookie-flags")
def test_the_stream_gives_the_client_its_session(gateway: RunningGateway) -> None:
    with opened(gateway, ALICE) as stream:
        cookie = stream.response.headers["set-cookie"]
        assert cookie.startswith("mcp_session_id=") and "HttpOnly" in cookie and "SameSite=Strict" in cookie
        result = stream.initialize()
        assert result["_meta"][TOKEN_KEY] == stream.token == stream.response.headers["mcp-session-id"]
        assert stream.token.startswith(stream.session())
        with httpx.Client(timeout=20) as http:
            web = Legacy(gateway.url, http, headers=ALICE)
            web.session = stream.token
            assert tool_text(web.tool("pid")) == stream.text("pid"), "it is the same session as on /mcp"


@requirement("spec.sse-session", "proc.gone")
def test_a_session_that_is_not_brought_back_ends_with_its_stream(gateway: RunningGateway) -> None:
    before = len(descendants(gateway.pid))
    with opened(gateway, ALICE) as stream:
        stream.initialize()
        stream.text("pid")
    assert eventually(lambda: ended(gateway, stream.token, ALICE))
    assert eventually(lambda: len(descendants(gateway.pid)) <= before)
    with opened(gateway, ALICE) as idle:
        pass
    assert eventually(lambda: ended(gateway, idle.token, ALICE)), "though nothing was sent on it"


@requirement("spec.sse-session", "proc.reset-told")
def test_a_cookie_that_came_back_with_a_message_keeps_the_session_without_its_process(gateway: RunningGateway) -> None:
    before = len(descendants(gateway.pid))
    with opened(gateway, ALICE) as first:
        first.initialize(first.cookie)
        first.text("state", first.cookie, a="1")
        session = first.session()
    assert eventually(lambda: len(descendants(gateway.pid)) <= before), "the process ends with the stream"
    with opened(gateway, ALICE, first.cookie) as again:
        assert "set-cookie" not in again.response.headers and again.token == first.token
        again.initialize()
        answer = again.tool("state")
        assert answer["result"]["_meta"][RESTARTED_KEY] == {"reason": "idle_stop"}
        assert again.session() == session
        pid = again.text("pid")
    with opened(gateway, ALICE, {"MCP-Gateway-Session": first.token}) as third:
        third.initialize()
        assert third.text("pid") == pid, "one that came back at the stream keeps its process"


@requirement("spec.sse-session", "id.carriers")
def test_a_message_may_carry_the_session(gateway: RunningGateway) -> None:
    with httpx.Client(timeout=20) as http:
        web = Legacy(gateway.url, http, headers=ALICE).open()
        pid, mine = tool_text(web.tool("pid")), {"MCP-Gateway-Session": web.session}
        with opened(gateway, ALICE) as stream:
            stream.initialize(mine)
            assert stream.text("pid") == pid
        assert eventually(lambda: ended(gateway, stream.token, ALICE)), "the unused session is gone"
        assert tool_text(web.tool("pid")) == pid, "and the named one goes on"
        with opened(gateway, ALICE) as other:
            other.initialize()
            own = other.text("pid")
            assert own != pid and other.text("pid", mine) == pid and other.text("pid") == own
        with opened(gateway, ALICE) as kept, opened(gateway, ALICE) as late:
            kept.initialize(kept.cookie)
            late.initialize(kept.cookie)
            assert late.session() == kept.session(), "a cookie of an earlier stream comes with the first message"
            late.text("pid", late.cookie)
            assert late.session() == kept.session(), "later cookies of other sessions change nothing"


@requirement("spec.sse-session", "id.bound", "id.forged")
def test_sessions_of_others_and_forged_ones_are_unknown(gateway: RunningGateway, http: httpx.Client) -> None:
    with opened(gateway, ALICE) as stream:
        stream.initialize()
        alices = {"MCP-Gateway-Session": stream.token}
        for headers in ({**BOB, **alices}, {**BOB, "MCP-Gateway-Session": stream.token[:-2] + "AA"}):
            refused = http.get(f"{gateway.base}/sse", headers=headers)
            assert refused.status_code == 404 and refused.json()["error"]["code"] == -32010
        with opened(gateway, BOB, stream.cookie) as bobs:
            assert "set-cookie" in bobs.response.headers, "an invalid cookie is ignored and replaced"
            bobs.initialize(stream.cookie)
            assert bobs.session() != stream.session()
            assert bobs.post({"jsonrpc": "2.0", "id": 9, "method": "ping"}, **alices).status_code == 404
        evil = {**ALICE, "Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
        assert http.get(f"{gateway.base}/sse", headers={**evil, **stream.cookie}).status_code == 403
        with opened(gateway, ALICE) as own:
            crossed = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site", **stream.cookie}
            own.initialize(crossed)
            assert own.session() != stream.session(), "a cookie counts for nothing across sites"
