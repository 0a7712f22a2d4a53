"""How sessions end, and that their processes end with them."""

import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from gateway.sessions.cached_record import CACHED_FOR_S
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.waiting import eventually, gone


@pytest.fixture(scope="module")
def short() -> Iterator[InProcessGateway]:
    """Sessions that go after 1.5 s without use, after 4 s anyhow, and unconfirmed ones after 0.6 s."""
    session = {"idle_ttl_s": 1.5, "max_age_s": 4.0, "unconfirmed_ttl_s": 0.6}
    servers = {"probe": server(PROBE), "demo": server(DEMO)}
    with in_process_gateway(servers, options={"session": session}) as gateway:
        yield gateway


def process(client: Legacy | Modern, **more: dict[str, str]) -> psutil.Process:
    return psutil.Process(int(tool_text(client.tool("pid", **more))))


@requirement("life.ttl")
def test_idle_time_slides_and_its_end_takes_the_process(short: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(f"{short.base}/servers/probe/mcp", http).open()
    child = process(client)
    for _ in range(3):
        time.sleep(0.7)  # under the 1.5 s: use, not time, is what keeps it
        assert client.tool("pid").status_code == 200
    assert gone([child], within_s=6), "idle for longer than its time, it goes by itself"
    assert client.tool("pid").status_code == 404


@requirement("life.ttl")
def test_age_ends_a_session_that_is_never_idle(short: InProcessGateway, http: httpx.Client) -> None:
    opened = time.monotonic()
    client = Legacy(f"{short.base}/servers/probe/mcp", http).open()
    child = process(client)
    assert eventually(lambda: client.tool("pid").status_code == 404, within_s=8)
    assert time.monotonic() - opened > 3.5
    assert gone([child], within_s=4)


@requirement("life.end")
def test_delete_ends_a_session_at_once_and_twice_is_harmless(probe: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(probe.at("probe"), http).open()
    child = process(client)
    other = Legacy(probe.at("probe"), http).open()
    assert client.delete().status_code == 200
    assert client.tool("pid").status_code == 404
    assert client.delete().status_code == 404
    assert gone([child])
    assert other.tool("pid").status_code == 200


@requirement("life.unconfirmed")
def test_an_anonymous_session_nobody_returns_to_goes_with_its_process(
    short: InProcessGateway, http: httpx.Client
) -> None:
    url = f"{short.base}/servers/probe/mcp"
    once = Modern(url, http)
    first = once.tool("pid")
    child = psutil.Process(int(tool_text(first)))
    returning = once.tool("pid")
    token = {"MCP-Gateway-Session": returning.headers["mcp-gateway-session"]}
    kept = process(once, headers=token)
    assert gone([child], within_s=4)
    stale = {"MCP-Gateway-Session": first.headers["mcp-gateway-session"]}
    assert once.tool("pid", headers=stale).status_code == 404
    assert kept.is_running(), "a client that came back confirmed its session"


@requirement("life.unconfirmed")
def test_an_exchange_in_flight_keeps_an_unconfirmed_session_alive(short: InProcessGateway, http: httpx.Client) -> None:
    client = Modern(f"{short.base}/servers/demo/mcp", http)
    answer = client.tool("slow", {"steps": 5, "interval_s": 0.5})  # four times as long as it would live unused
    assert tool_text(answer) == "done"
    token = {"MCP-Gateway-Session": answer.headers["mcp-gateway-session"]}
    assert tool_text(client.tool("count", headers=token)) == "1", "its time counts from the end of the exchange"


@requirement("life.unconfirmed", "spec.legacy")
def test_an_open_stream_keeps_a_session_alive(short: InProcessGateway, http: httpx.Client) -> None:
    client = Legacy(f"{short.base}/servers/probe/mcp", http).open()
    with httpx.Client(timeout=20) as second:
        listening = Legacy(client.url, second)
        listening.session = client.session
        with listening.get() as stream:
            assert stream.status_code == 200
            time.sleep(2.2)  # past the idle time, short of the absolute one
            assert client.tool("pid").status_code == 200


@requirement("life.bounded")
def test_the_store_is_bounded_and_an_evicted_session_takes_its_process(http: httpx.Client) -> None:
    with in_process_gateway({"p": server(PROBE)}, options={"session": {"max_sessions": 2}}) as gateway:
        first, second = Legacy(gateway.url, http).open(), Legacy(gateway.url, http).open()
        child = process(first)
        second.tool("pid")
        time.sleep(2 * CACHED_FOR_S)  # the store learns of uses that are so far apart
        first.tool("pid")
        third = Legacy(gateway.url, http).open()
        assert second.tool("pid").status_code == 404, "the least recently used one made room"
        assert first.tool("pid").status_code == third.tool("pid").status_code == 200
        assert child.is_running()
