"""Session keys, default sessions and idle sessions, at two replicas on one Redis and at a gateway for everybody."""

import os
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.types import TextContent

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, UNLIMITED, RunningGateway, replicas, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import (
    CURL,
    RESTARTED,
    Legacy,
    Modern,
    error_of,
    modern_body,
    modern_headers,
    result_of,
    tool_text,
)
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually

NEWCOMER = secrets.token_hex(8)
"""The key of a principal that no other test has opened a default session for."""
KEY_META = "io.github.mcp-session-gateway/session-key"
PYTHON = {"User-Agent": "python-httpx2/2.16.2"}
HOSTS = "X-Conversation-Id"
OPTIONS: dict[str, Any] = {
    "api_keys": {"alice": sha256(KEYS["alice"]), "bob": sha256(KEYS["bob"]), NEWCOMER: sha256(NEWCOMER)},
    "sse": True,
    "session": {"key_headers": ["MCP-Gateway-Session-Key", HOSTS]},
    "policy": UNLIMITED,
}


@pytest.fixture(scope="module")
def pair(redis_server: RunningRedis) -> Iterator[list[RunningGateway]]:
    with replicas(redis_server.url, {"main": server(DEMO)}, **OPTIONS) as gateways:
        yield gateways


def keyed(key: str, who: str = "alice", **more: str) -> dict[str, str]:
    return {**PYTHON, **bearer(KEYS[who]), "MCP-Gateway-Session-Key": key, **more}


def count(gateway: RunningGateway, http: httpx.Client, headers: dict[str, str], **more: Any) -> str:
    return tool_text(Modern(gateway.url, http, headers=headers).tool("count", **more))


@requirement("cli.session-key", "cli.session-key-bound", "rep.any")
def test_one_key_is_one_session_of_its_principal_at_any_replica(pair: list[RunningGateway], http: httpx.Client) -> None:
    here, there = pair
    key = f"agent {secrets.token_hex(4)}"
    assert [count(gateway, http, keyed(key)) for gateway in (here, there, here)] == ["1", "2", "3"]
    by_meta = Modern(there.url, http, headers={**PYTHON, **bearer(KEYS["alice"])})
    assert tool_text(by_meta.tool("count", meta={KEY_META: key})) == "4"
    assert count(there, http, {**PYTHON, **bearer(KEYS["alice"]), HOSTS: key}) == "5"
    for other in (keyed(key, who="bob"), keyed(f"{key}2"), {**PYTHON, **bearer(KEYS["alice"])}):
        assert count(there, http, other) == "1"
    elsewhere = Modern(f"{here.base}/servers/main/mcp", http, headers=keyed(key))
    assert tool_text(elsewhere.tool("count")) == "1", "another endpoint"
    # The other era meets the same session and its state; its process knows the handshake of its own client.
    legacy = Legacy(there.url, http, headers=keyed(key)).open()
    again = Legacy(here.url, http, headers=keyed(key)).open()
    assert legacy.session == again.session
    tool_text(legacy.tool("remember", {"key": "colour", "value": "green"}))
    recalled = Modern(here.url, http, headers=keyed(key)).tool("recall", {"key": "colour"})
    assert "green" in tool_text(recalled)
    for gateway in pair:
        assert key not in gateway.stderr()


@requirement("cli.default", "cli.default-learnt")
def test_a_client_that_brings_nothing_back_meets_its_default_session(
    pair: list[RunningGateway], http: httpx.Client
) -> None:
    here, there = pair
    curl = {**CURL, **bearer(NEWCOMER)}
    calls = [count(gateway, http, curl) for gateway in (here, there, *[here] * 5)]  # the last ones on the fast path
    assert calls == ["1", "2", "3", "4", "5", "6", "7"]
    assert count(here, http, curl | {"MCP-Gateway-Session": "new"}) == "1"
    answer = Modern(here.url, http, headers=curl).tool("count")
    echoing = curl | {"MCP-Gateway-Session": answer.headers["mcp-gateway-session"]}
    assert (tool_text(answer), count(there, http, echoing)) == ("8", "9")
    assert count(here, http, curl) == "1", "it has brought its token back"
    assert eventually(lambda: count(there, http, curl) == "1"), "which the other replica learns within a second"


@pytest.fixture(scope="module")
def everybody() -> Iterator[InProcessGateway]:
    """Serves anonymous clients, and gives idle processes of sessions that nobody came back to up at once."""
    servers = {"main": server(PROBE), "kept": server(PROBE, idle_stop_s=0)}
    with in_process_gateway(servers, options={"session": {"unreturned_stop_s": 0.3}, "policy": UNLIMITED}) as gateway:
        yield gateway


@requirement("cli.session-key-anonymous", "cli.session-key-refused")
def test_an_anonymous_key_must_be_hard_to_guess(everybody: InProcessGateway, http: httpx.Client) -> None:
    def ask(key: str) -> httpx.Response:
        headers = {"MCP-Gateway-Session-Key": key}
        return Modern(f"{everybody.base}/servers/main/mcp", http, headers=headers).tool("pid")

    good = secrets.token_hex(16)
    assert tool_text(ask(good)) == tool_text(ask(good)) != tool_text(ask(secrets.token_urlsafe(16)))
    for poor in ("agent-1", "f" * 32, "", "${AGENT_KEY}", "k" * 300):
        refused = ask(poor)
        error = error_of(refused)
        assert (refused.status_code, error["data"]["reason"]) == (400, "invalid_session_key")
        assert "session key" in error["message"] and (not poor or poor not in error["message"])


@requirement("cli.session-key-refused")
def test_a_key_that_comes_twice_in_one_header_is_refused(everybody: InProcessGateway, http: httpx.Client) -> None:
    """Readers of the first, of the last and of both together would mean three sessions."""
    body = modern_body("tools/list")
    key = ("MCP-Gateway-Session-Key", secrets.token_hex(16))
    answer = http.post(everybody.url, json=body, headers=[*modern_headers(body).items(), key, key])
    assert answer.status_code == 400 and "appears more than once" in answer.text


@requirement("cli.idle")
def test_a_session_that_nobody_came_back_to_gives_its_idle_process_up(
    everybody: InProcessGateway, http: httpx.Client
) -> None:
    opened = [Modern(f"{everybody.base}/servers/main/mcp", http).tool("pid") for _ in range(4)]
    kept = Modern(f"{everybody.base}/servers/kept/mcp", http).tool("pid")
    pids = {int(tool_text(answer)) for answer in opened}
    assert eventually(lambda: not pids & {p.pid for p in descendants(os.getpid())})
    assert int(tool_text(kept)) in {p.pid for p in descendants(os.getpid())}, "its server does not allow it"
    token = {"MCP-Gateway-Session": opened[0].headers["mcp-gateway-session"]}
    again = Modern(f"{everybody.base}/servers/main/mcp", http, headers=token)
    woken = again.tool("pid")
    assert result_of(woken)["_meta"][RESTARTED] == {"reason": "idle_stop"}
    threading.Event().wait(1.0)  # longer than the process of a session without its client may be idle
    assert tool_text(again.tool("pid")) == tool_text(woken), "its client is back: the process stays"


@requirement("cli.session-key-lasts")
def test_a_connection_that_closes_does_not_end_the_session_of_a_key(
    pair: list[RunningGateway], http: httpx.Client
) -> None:
    here, there = pair
    key = secrets.token_hex(4)
    client = Legacy(here.url, http, headers=keyed(key)).open()
    assert tool_text(client.tool("count")) == "1"
    kept = client.delete()  # as SDKs do when they close
    assert (kept.status_code, kept.headers["allow"]) == (405, "POST, GET")
    again = Legacy(there.url, http, headers=keyed(key)).open()
    assert (again.session, tool_text(again.tool("count"))) == (client.session, "2")
    own = Legacy(there.url, http, headers={**PYTHON, **bearer(KEYS["alice"])}).open()
    own.headers |= keyed(key)
    assert own.delete().status_code == 200, "the token names another session, and wins"
    again.headers = bearer(KEYS["alice"])
    assert again.delete().status_code == 200
    assert Legacy(here.url, http, headers=keyed(key)).open().session != client.session


@requirement("cli.session-key", "cli.session-key-lasts")
@pytest.mark.anyio
async def test_a_client_of_http_sse_names_its_session_by_a_key(pair: list[RunningGateway]) -> None:
    key, counts = secrets.token_hex(4), []
    for gateway in (*pair, pair[0]):
        async with (
            sse_client(f"{gateway.base}/sse", headers=keyed(key)) as (read, write),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            content = (await session.call_tool("count", {})).content[0]
            assert isinstance(content, TextContent)
            counts.append(content.text)
    assert counts == ["1", "2", "3"]
