"""Whose session it is, and by what a client carries it."""

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.types import TextContent

from tests.requirements import requirement
from tests.support.credentials import API_KEYS, KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, PROBE, UNLIMITED, RunningGateway, replicas, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import (
    CURL,
    RESTARTED,
    SESSION_KEY,
    Legacy,
    Modern,
    error_of,
    messages,
    modern_body,
    modern_headers,
    result_of,
    tool_text,
    without_id,
)
from tests.support.named_gateways import BRIEF, BRIEF_S
from tests.support.redis_server import RunningRedis
from tests.support.waiting import descendants, eventually


def who(response: httpx.Response) -> str:
    session_id = json.loads(tool_text(response))["session_id"]
    assert isinstance(session_id, str) and session_id
    return session_id


def cookie_of(response: httpx.Response) -> str:
    """The cookie as a client returns it."""
    return response.headers["set-cookie"].partition(";")[0]


@requirement("id.carriers", "id.random", "id.result-token")
def test_a_modern_client_finds_its_session_by_header_meta_or_cookie(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    first = client.tool("whoami")
    session = who(first)
    token = first.headers["mcp-gateway-session"]
    assert client.tool("whoami", headers={"MCP-Gateway-Session": session}).status_code == 404, "an id is no token"
    assert session not in token.replace(".", "")[len(session) :] and token != session
    assert messages(first)[0]["result"]["_meta"][SESSION_KEY] == token
    carriers: list[Any] = [
        {"headers": {"MCP-Gateway-Session": token}},
        {"meta": {SESSION_KEY: token}},
        {"headers": {"Cookie": cookie_of(first)}},
    ]
    for carried in carriers:
        later = client.tool("whoami", **carried)
        assert who(later) == session and later.headers["mcp-gateway-session"]
        assert SESSION_KEY not in messages(later)[0]["result"].get("_meta", {}), "a result has the token once"
    known = client.tool("whoami", headers={"User-Agent": "python-httpx2/2.0"})
    assert SESSION_KEY not in messages(known)[0]["result"].get("_meta", {}) and known.headers["mcp-gateway-session"]
    assert who(client.tool("whoami")) != session, "an anonymous client that keeps nothing is a new one each time"
    # A modern response never carries the legacy header, and an incoming one is ignored.
    assert "mcp-session-id" not in first.headers
    assert who(client.tool("whoami", headers={"Mcp-Session-Id": token})) != session


@requirement("id.forged")
def test_forged_expired_ended_and_foreign_tokens_are_answered_alike(keyed: RunningGateway, http: httpx.Client) -> None:
    alice, bob = (Modern(keyed.at("demo"), http, headers=bearer(KEYS[name])) for name in ("alice", "bob"))
    token = alice.tool("whoami", headers={}).headers["mcp-gateway-session"]
    swapped = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    ended = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["bob"])).open()
    ended.delete()
    brief = Legacy(keyed.at("demo"), http, headers=bearer(BRIEF))
    # On a busy machine, its session may end before it is open.
    assert eventually(lambda: brief.initialize().status_code == 200 and brief.session != "")
    time.sleep(2 * BRIEF_S)
    answers = [
        bob.tool("whoami", headers={"MCP-Gateway-Session": t}) for t in (swapped, token, "unknown", ended.session)
    ]
    answers.append(brief.tool("whoami"))
    assert len({(a.status_code, str(without_id(a.json()["error"]))) for a in answers}) == 1
    assert answers[0].status_code == 404
    for value in (swapped, token):
        found = who(bob.tool("whoami", headers={"Cookie": f"mcp_session_id={value}"}))
        assert not token.startswith(found), "such a cookie finds nothing"


@requirement("id.purpose")
def test_a_result_that_may_be_cached_carries_no_token(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    token = client.tool("whoami").headers["mcp-gateway-session"]
    carried = {"MCP-Gateway-Session": token}
    lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover")
    answers = [client.send(method, headers=carried) for method in lists]
    answers.append(client.send("resources/read", {"uri": "demo://session"}, headers=carried))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert token not in answer.text and SESSION_KEY not in answer.text
    assert "mcp-gateway-session" not in client.send("tools/list").headers, "lists and discover create no session"


@requirement("id.cookie-flags", "spec.origin")
def test_a_cookie_is_useless_cross_site(demo: RunningGateway, http: httpx.Client) -> None:
    client = Modern(demo.url, http)
    first = client.tool("whoami")
    cookie = {"Cookie": cookie_of(first)}
    for site in ("cross-site", "same-site"):
        other = client.tool("whoami", headers={**cookie, "Sec-Fetch-Site": site})
        assert who(other) != who(first) and "set-cookie" not in other.headers, "the user's session stays in the browser"
    other_port = {**cookie, "Origin": "http://localhost:9"}
    assert who(client.tool("whoami", headers=other_port)) != who(first)
    assert client.tool("whoami", headers={**cookie, "Origin": "https://evil.example"}).status_code == 403
    assert who(client.tool("whoami", headers={**cookie, "Origin": demo.base})) == who(first)


@requirement("id.bound")
def test_a_session_answers_only_its_principal_and_lives_on(keyed: RunningGateway, http: httpx.Client) -> None:
    alice = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["alice"])).open()
    before = who(alice.tool("whoami"))
    mallory = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["bob"]))
    mallory.session = alice.session
    assert mallory.tool("whoami").status_code == 404
    assert mallory.notify("notifications/initialized").status_code == 404
    assert mallory.delete().status_code == 404
    with mallory.get() as stream:
        assert stream.status_code == 404
    nobody = Legacy(keyed.at("demo"), http)
    nobody.session = alice.session
    refused = nobody.tool("whoami")
    assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Bearer")
    assert who(alice.tool("whoami")) == before


@requirement("id.refresh")
def test_a_replaced_key_of_the_same_principal_keeps_the_session(keyed: RunningGateway, http: httpx.Client) -> None:
    session = Legacy(keyed.at("demo"), http, headers=bearer(KEYS["alice"])).open()
    before = who(session.tool("whoami"))
    session.headers = bearer(KEYS["alice-new"])
    assert who(session.tool("whoami")) == before


@requirement("id.reattach")
def test_initialize_with_an_explicit_token_resumes_session_state_and_process(
    demo: RunningGateway, http: httpx.Client
) -> None:
    client = Legacy(demo.url, http).open()
    session = who(client.tool("whoami"))
    assert tool_text(client.tool("count")) == "1"
    again = Legacy(demo.url, http)
    again.session = client.session
    again.open()
    assert who(again.tool("whoami")) == session
    assert tool_text(again.tool("count")) == "2"
    stale = Legacy(demo.url, http)
    stale.session = "x" * 24 + "." + "y" * 43
    assert stale.initialize().status_code == 200 and stale.session not in ("", client.session)


@requirement("id.reattach")
def test_by_cookie_or_principal_initialize_resumes_only_where_switched_on(http: httpx.Client) -> None:
    for reattach, resumes in ((["cookie"], True), (["principal"], True), ([], False)):
        options = {"api_keys": API_KEYS, "session": {"reattach": reattach}}
        with in_process_gateway({"main": server(DEMO)}, options=options) as gateway:
            alice, bob = (bearer(KEYS[name]) for name in ("alice", "bob"))
            opened = Legacy(gateway.url, http, headers=alice).initialize()
            cookie = {"Cookie": cookie_of(opened)}
            again = Legacy(gateway.url, http, headers={**alice, **cookie}).initialize()
            other = Legacy(gateway.url, http, headers={**bob, **cookie}).initialize()
            tokens = [answer.headers["mcp-session-id"] for answer in (opened, again, other)]
            assert (tokens[0] == tokens[1]) is resumes and tokens[2] not in tokens[:2], reattach


@requirement("ops.redact")
def test_no_token_credential_or_whole_id_in_logs_errors_or_health(http: httpx.Client) -> None:
    """Also not where everything is logged."""
    options = {"api_keys": {"alice": sha256(KEYS["alice"])}, "log_level": "debug"}
    with in_process_gateway({"main": server(PROBE)}, options=options) as gateway:
        client = Modern(gateway.url, http, headers=bearer(KEYS["alice"]))
        env = json.loads(tool_text(first := client.tool("env", {"prefix": "MCP_SESSION"})))
        id_shown = env["MCP_SESSION_ID"][:8]
        secrets = [KEYS["alice"], first.headers["mcp-gateway-session"], cookie_of(first), env["MCP_SESSION_ID"][:9]]
        secrets.append(sha256(KEYS["alice"])[:16])
        answers = [
            client.tool("crash"),
            client.tool("whoami", headers={"MCP-Gateway-Session": secrets[1][:-3] + "AAA"}),
            Modern(gateway.url, http, headers=bearer("wrong-key-" * 3)).tool("pid"),
            http.get(gateway.base + "/readyz"),
            http.get(gateway.base + "/healthz"),
        ]
        client.tool("pid")
    told = gateway.stderr() + "".join(a.text for a in answers)
    assert id_shown in told, "sessions are named by their first 8 characters"
    assert "wrong-key" not in told
    for secret in secrets:
        assert secret not in told
        assert secret.partition("=")[2] not in told or not secret.partition("=")[2]


# -- session keys, default sessions and idle sessions, at two replicas on one Redis and at a gateway for everybody


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
    assert [count(there, http, other) for other in (keyed(key, who="bob"), keyed(f"{key}2"))] == ["1", "1"]
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upstreams.factory.UNRETURNED_STOP_S", 0.3)
        with in_process_gateway(servers, options={"policy": UNLIMITED}) as gateway:
            yield gateway


@requirement("cli.session-key-anonymous", "cli.session-key-refused")
def test_an_anonymous_key_must_be_hard_to_guess(everybody: InProcessGateway, http: httpx.Client) -> None:
    def ask(key: str) -> httpx.Response:
        headers = {"MCP-Gateway-Session-Key": key}
        return Modern(f"{everybody.base}/servers/main/mcp", http, headers=headers).tool("pid")

    good = secrets.token_hex(16)
    assert tool_text(ask(good)) == tool_text(ask(good)) != tool_text(ask(secrets.token_urlsafe(16)))
    refused = ask("agent-1")
    error = error_of(refused)
    assert (refused.status_code, error["data"]["reason"]) == (400, "invalid_session_key")
    assert "session key" in error["message"] and "agent-1" not in error["message"]
    body, key = modern_body("tools/list"), ("MCP-Gateway-Session-Key", good)
    twice = http.post(everybody.url, json=body, headers=[*modern_headers(body).items(), key, key])
    assert twice.status_code == 400 and "appears more than once" in twice.text


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
