"""Several isolated sessions of one unmodified server, held by one client, and the tools that show and end sessions."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from gateway.sessions.sessions_by_handle import MAX_CHILDREN
from tests.requirements import requirement
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, PROBE, server
from tests.support.in_process_gateway import RING, InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, failed_text, messages, result_of, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.waiting import gone

SERVERS = {"demo": server(DEMO, handles=True), "probe": server(PROBE, handles=True)}


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    with in_process_gateway(SERVERS) as running:
        yield running


def clients(gateway: InProcessGateway, http: httpx.Client, path: str) -> list[Legacy | Modern]:
    """One of each era, both with a session to come back to."""
    url = f"{gateway.base}/servers/{path}/mcp"
    token = result_of(Modern(url, http).tool("open_session"))["_meta"]["io.github.mcp-session-gateway/session"]
    return [Legacy(url, http).open(), Modern(url, http, headers={"MCP-Gateway-Session": token})]


@requirement("id.carriers", "ctx.isolated", "proc.isolated")
def test_one_client_holds_three_sessions_of_an_unmodified_server(gateway: InProcessGateway, http: httpx.Client) -> None:
    for client in clients(gateway, http, "demo"):
        handles = [tool_text(client.tool("open_session")) for _ in range(2)]
        for n in range(1, 4):
            assert tool_text(client.tool("count")) == str(n)
            assert [tool_text(client.tool("count", {"session": handle})) for handle in handles] == [str(n)] * 2
        client.tool("remember", {"key": "k", "value": "one", "session": handles[0]})
        assert tool_text(client.tool("recall", {"key": "k", "session": handles[0]})) == "one"
        assert tool_text(client.tool("recall", {"key": "k", "session": handles[1]})) != "one"
        assert tool_text(client.tool("recall", {"key": "k"})) != "one"


@requirement("id.carriers")
def test_sessions_that_are_opened_at_the_same_time_have_one_bound(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    client = Legacy(f"{gateway.base}/servers/demo/mcp", http).open()
    with ThreadPoolExecutor(16) as pool:
        answers = [messages(answer)[-1] for answer in pool.map(client.tool, ["open_session"] * (MAX_CHILDREN + 40))]
    opened = [answer["result"]["structuredContent"]["session"] for answer in answers if "result" in answer]
    assert 0 < len(opened) <= MAX_CHILDREN and len(opened) < len(answers)
    assert tool_text(client.tool("count", {"session": opened[-1]})) == "1"
    assert tool_text(client.tool("close_session", {"session": opened[-1]})) == "True"
    assert tool_text(client.tool("open_session"))


@requirement("id.bound", "life.end", "proc.gone")
def test_closed_foreign_and_ended_handles_are_unknown(gateway: InProcessGateway, http: httpx.Client) -> None:
    url = f"{gateway.base}/servers/probe/mcp"
    client, stranger = Legacy(url, http).open(), Legacy(url, http).open()
    one, two = (tool_text(client.tool("open_session")) for _ in range(2))
    children = [psutil.Process(int(tool_text(client.tool("pid", {"session": handle})))) for handle in (one, two)]
    assert "no session" in failed_text(stranger.tool("pid", {"session": one}))
    assert tool_text(stranger.tool("close_session", {"session": one})) == "False"
    assert tool_text(client.tool("close_session", {"session": one})) == "True"
    assert gone([children[0]]) and "no session" in failed_text(client.tool("pid", {"session": one}))
    client.delete()
    assert gone([children[1]]), "what is within a session ends with it"


@requirement("id.carriers", "rep.any")
def test_a_principals_handles_are_good_wherever_it_calls_from(redis_server: RunningRedis, http: httpx.Client) -> None:
    options = {"store": redis_server.url, "api_keys": API_KEYS}
    mine, other = (bearer(key) for key in list(KEYS.values())[:2])
    with (
        in_process_gateway(SERVERS, options=options, ring=RING) as first,
        in_process_gateway(SERVERS, options=options, ring=RING) as second,
    ):
        urls = [f"{gateway.base}/servers/demo/mcp" for gateway in (first, second)]
        handle = tool_text(Modern(urls[0], http, headers=mine).tool("open_session"))
        for n in range(1, 5):
            client = Modern(urls[n % 2], http, headers=mine)
            assert tool_text(client.tool("count", {"session": handle})) == str(n)
        stranger = Modern(urls[0], http, headers=other)
        assert "no session" in failed_text(stranger.tool("count", {"session": handle}))


@requirement("wall.authority")
def test_a_call_that_names_a_session_is_never_done_in_another_one(
    gateway: InProcessGateway, http: httpx.Client
) -> None:
    for client in clients(gateway, http, "demo"):
        handle = tool_text(client.tool("open_session"))
        assert tool_text(client.tool("count", {"session": handle})) == "1"
        others: list[Any] = ["hs-", "mine", "", None, 0, 7, True, [handle], {}]
        for wrong in (handle[:-1], handle.upper(), f" {handle}", *others):
            failed = failed_text(client.tool("count", {"session": wrong}))
            assert failed.startswith("count: arguments.session: you have no session"), wrong
        assert "you have no session" in failed_text(client.tool("close_session", {}))
        assert tool_text(client.tool("count", {"session": handle})) == "2"
        assert tool_text(client.tool("count")) == "1", "only absence means the session around it"


# -- the gateway's own tools


def listed(client: Legacy) -> list[Any]:
    result = result_of(client.tool("gateway__list_sessions"))
    return [json.loads(part["text"]) for part in result["content"]]


@requirement("pol.tools", "life.default-only", "life.end", "id.bound")
def test_a_client_sees_and_ends_its_own_sessions_only(http: httpx.Client) -> None:
    """At a gateway where its principal has no others."""
    options = {"api_keys": API_KEYS, "tools": True}
    with in_process_gateway({"probe": server(PROBE)}, options=options) as gateway:

        def opened(who: str, name: str) -> Legacy:
            return Legacy(gateway.url, http, headers=bearer(KEYS[who])).open(name=name)

        one = opened("alice", "first")
        assert [s["client"] for s in listed(one)] == ["first"]
        assert json.loads(tool_text(one.tool("gateway__show_session")))["here"] is True, "there is but one"
        two, foreign = opened("alice", "second"), opened("bob", "his")
        assert {s["client"] for s in listed(one)} == {"first", "second"}
        several = result_of(one.tool("gateway__show_session"))
        assert several["isError"] and "first characters" in several["content"][0]["text"]
        child = psutil.Process(int(tool_text(two.tool("probe__pid"))))
        ids = {s["client"]: s["session"] for s in (*listed(one), *listed(foreign))}
        for wrong, why in (
            (ids["his"], "no such session"),
            ("nonsense", "no such session"),
            (ids["first"], "by DELETE"),
            ("", "at least the first four"),
            (ids["second"][:3], "at least the first four"),
        ):
            refused = result_of(one.tool("gateway__end_session", {"session": wrong}))
            assert refused["isError"] and why in refused["content"][0]["text"]
        assert tool_text(one.tool("gateway__end_session", {"session": ids["second"]})) == f"ended {ids['second']}"
        assert gone([child]) and two.tool("probe__pid").status_code == 404
        assert tool_text(foreign.tool("probe__pid"))
