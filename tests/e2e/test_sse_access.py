"""HTTP+SSE: who asks is found out first, a message URL is of its stream's principal, and sessions come as on `/mcp`."""

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


@pytest.fixture(scope="module")
def gateway(redis_server: RunningRedis) -> Iterator[RunningGateway]:
    options = {
        "sse": True,
        "store": redis_server.url,
        "api_keys": {name: sha256(KEYS[name]) for name in ("alice", "bob")},
        "auth": {"proxies": {"networks": ["127.0.0.0/8"], "subject_header": "X-User", "issuer": "proxy"}},
        "allowed_hosts": ["gateway.example", "127.0.0.1"],
        "allowed_origins": ["https://app.example"],
    }
    env = {"MCP_GATEWAY_KEYS": "k" * 40}
    with running_gateway({"probe": server(PROBE)}, options=options, env=env) as running:
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

    def answer(self) -> Any:
        return json.loads(self.data())

    def post(self, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(self.address, json=body, headers={**self._headers, **headers}, timeout=20)

    def ask(self, method: str, params: Any, headers: dict[str, str] | None = None) -> Any:
        self._last += 1
        body = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        assert self.post(body, **(headers or {})).status_code == 202
        while (answer := self.answer()).get("id") != self._last:
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


WHO = {"name": "env", "arguments": {"prefix": "MCP_SESSION_PRINCIPAL"}}


def message(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@requirement("wall.before-auth", "spec.sse")
def test_nothing_is_opened_or_told_without_a_credential(gateway: RunningGateway, http: httpx.Client) -> None:
    for path in ("/sse", "/servers/probe/sse"):
        for headers in ({}, bearer("nobody"), {"Authorization": "Basic eA=="}):
            answer = http.get(gateway.base + path, headers=headers)
            assert answer.status_code == 401 and "www-authenticate" in answer.headers
            assert "connection=" not in answer.text
            posted = http.post(f"{gateway.base}{path}/messages?connection={'x' * 24}", json={}, headers=headers)
            assert posted.status_code == 401
    for name in ("Authorization", "Origin", "Content-Type"):
        doubled = [(name, "one"), (name, "two")]
        assert http.get(f"{gateway.base}/sse", headers=doubled).status_code == 400
        assert http.post(f"{gateway.base}/sse/messages", content=b"{}", headers=doubled).status_code == 400
    assert "Traceback" not in gateway.stderr()


@requirement("wall.authority", "spec.sse")
def test_a_message_url_is_of_the_principal_of_its_stream(gateway: RunningGateway, http: httpx.Client) -> None:
    with opened(gateway, ALICE) as stream:
        call = message(2, "tools/call", **WHO)
        for headers, status in (({}, 401), (BOB, 404), ({"X-User": "alice"}, 404)):
            assert http.post(stream.address, json=call, headers=headers).status_code == status
        forged = stream.address[:-2] + ("aa" if stream.address[-2:] != "aa" else "bb")
        assert http.post(forged, json=call, headers=ALICE).status_code == 404
        assert (
            http.post(stream.address, content=b"{}", headers={**ALICE, "Content-Type": "text/plain"}).status_code == 415
        )
        assert http.post(stream.address, json=message(1, "initialize", **INFO), headers=ALICE).status_code == 202
        assert stream.answer()["id"] == 1, "and nothing before it"
        assert http.post(stream.address, json=call, headers=ALICE).status_code == 202
        assert "alice" in stream.answer()["result"]["content"][0]["text"]


@requirement("wall.authority", "spec.sse", "spec.origin")
def test_it_serves_under_a_name_of_its_own_whom_a_proxy_vouches_for(gateway: RunningGateway) -> None:
    ada = {"X-User": "ada", "Host": "gateway.example"}
    evil = {**ada, "Host": "evil.example"}
    assert httpx.get(f"{gateway.base}/sse", headers=evil).status_code == 421
    with opened(gateway, ada) as stream:
        assert httpx.post(stream.address, json={}, headers=evil).status_code == 421
        stream.initialize()
        assert "ada" in stream.text("env", prefix="MCP_SESSION_PRINCIPAL")


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


@requirement("wall.before-auth", "spec.sse")
def test_messages_that_make_no_sense_harm_no_stream(gateway: RunningGateway, http: httpx.Client) -> None:
    modern = {"_meta": {"io.modelcontextprotocol/protocolVersion": "\u2603\r\nX: y"}, "uri": "\u2603\r\nX: y"}
    with opened(gateway, ALICE) as stream:
        odd: list[Any] = [
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": 1}}},
            message(7, "resources/read", **modern),
            [message(8, "ping")],
        ]
        for one in odd:
            assert http.post(stream.address, json=one, headers=ALICE).status_code == 202
        assert http.post(stream.address, json=message(1, "initialize", **INFO), headers=ALICE).status_code == 202
        for _ in range(4):
            if stream.answer().get("id") == 1:
                return
        raise AssertionError("initialize was not answered")
