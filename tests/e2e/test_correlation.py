"""Whatever a line is written for, its ids are those of the call that caused it, however many calls run at once."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, messages, tool_text
from tests.support.waiting import eventually

SLOW_S = 0.3
AT_ONCE = 24


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    servers = {
        "probe": server(PROBE, tools={"sleep": {"slow_s": SLOW_S}}),
        "noting": {"in_process": "tests.support.sdk_servers:noting"},
    }
    options = {"log_format": "json", "log_level": "debug", "log_calls_per_s": 1_000}
    with running_gateway(servers, options=options) as running:
        yield running


class Traced(Legacy):
    """A client that gives each of its calls a trace of its own."""

    def __init__(self, gateway: RunningGateway, http: httpx.Client, number: int) -> None:
        super().__init__(gateway.url, http)
        self._number = number
        self._calls = 0
        self.open()
        self.id = self.session[:8]

    def trace(self) -> str:
        self._calls += 1
        return f"{self._number:016x}{self._calls:016x}"

    def traced(self, name: str, trace: str, **arguments: Any) -> httpx.Response:
        return self.tool(name, arguments, {"traceparent": f"00-{trace}-b7ad6b7169203331-01"})


def lines_of(gateway: RunningGateway, wanted: Callable[[Any], object]) -> list[Any]:
    lines = [json.loads(line) for line in gateway.stderr().splitlines() if line.startswith("{")]
    return [line for line in lines if wanted(line)]


def of_traces(gateway: RunningGateway, traces: set[str]) -> list[Any]:
    return lines_of(gateway, lambda line: line.get("correlation") in traces)


def sessions(gateway: RunningGateway) -> dict[str, str]:
    """Start of a token → session id as logs show it. A token begins with the id."""
    created = lines_of(gateway, lambda line: line["event"] == "session created")
    return {line["session"]: line["correlation"] for line in created}


@requirement("ctx.correlation-right", "ctx.isolated")
def test_lines_of_in_process_tools_belong_to_the_call_that_runs(gateway: RunningGateway, http: httpx.Client) -> None:
    clients = [Traced(gateway, http, number) for number in (1, 2)]
    calls = {f"w{number}": (clients[number % 2], clients[number % 2].trace()) for number in range(AT_ONCE)}

    def note(word: str) -> str:
        client, trace = calls[word]
        return tool_text(client.traced("noting__note", trace, word=word))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        ids = dict(zip(calls, pool.map(note, calls), strict=True))
    assert {ids[word] for word in calls} == {client.id for client in clients}

    def noted() -> list[Any]:
        return lines_of(gateway, lambda line: line["event"].startswith("noted w"))

    assert eventually(lambda: len(noted()) == 3 * AT_ONCE)
    for line in noted():
        word = line["event"].split()[1]
        client, trace = calls[word]
        assert (line["session"], line["correlation"]) == (client.id, trace), line


@requirement("ctx.correlation-right", "pol.slow")
def test_a_slow_call_is_told_while_it_hangs_and_when_it_ends(gateway: RunningGateway, http: httpx.Client) -> None:
    clients = [Traced(gateway, http, number) for number in (3, 4)]
    calls = [(client, client.trace()) for client in clients for _ in range(3)]
    quick = clients[0].trace()
    assert tool_text(clients[0].traced("probe__sleep", quick, seconds=0)) == "slept"

    def sleep(call: tuple[Traced, str]) -> None:
        client, trace = call
        assert tool_text(client.traced("probe__sleep", trace, seconds=SLOW_S + 0.7)) == "slept"

    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(sleep, calls))
    for client, trace in calls:
        assert eventually(lambda trace=trace: len(of_traces(gateway, {trace})) >= 3)  # type: ignore[misc]  # this round
        told = [line for line in of_traces(gateway, {trace}) if line["event"].startswith("slow call")]
        assert [line["event"] for line in told] == ["slow call, not answered yet", "slow call"]
        assert all((line["session"], line["server"], line["tool"]) == (client.id, "probe", "sleep") for line in told)
        assert SLOW_S < told[0]["took_s"] < told[1]["took_s"]
    assert not any(line["event"].startswith("slow call") for line in of_traces(gateway, {quick}))


@requirement("ctx.correlation-right", "proc.crash")
def test_lines_of_a_child_name_the_only_call_in_flight_or_none(gateway: RunningGateway, http: httpx.Client) -> None:
    first, other = (Traced(gateway, http, number) for number in (5, 6))
    opening, alone, dying = (first.trace() for _ in range(3))
    first.traced("probe__pid", opening)
    first.traced("probe__mutter", alone, line="alone", seconds=SLOW_S)
    pairs = [[client.trace() for _ in range(2)] for client in (first, other)]

    def mutter(number: int) -> None:
        client, traces = ((first, pairs[0]), (other, pairs[1]))[number % 2]
        client.traced("probe__mutter", traces[number // 2], line=f"m{number}", seconds=0.8)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(mutter, range(4)))
    crowd = [first.trace() for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda trace: first.traced("probe__mutter", trace, line="crowd", seconds=0.8), crowd))
    assert "error" in messages(first.traced("probe__crash", dying))[-1]

    def muttered(word: str) -> list[Any]:
        return lines_of(gateway, lambda line: re.fullmatch(f"server probe: {word}", line["event"]) is not None)

    assert eventually(lambda: len(muttered("crowd")) == 5)
    (line,) = muttered("alone")
    assert (line["session"], line["correlation"], line["server"]) == (first.id, alone, "probe")
    for line in muttered("m[0-3]"):
        client, traces = ((first, pairs[0]), (other, pairs[1]))[int(line["event"][-1]) % 2]
        assert line["session"] == client.id
        named = {line["correlation"]} if "correlation" in line else set(line["correlations"].split())
        assert named <= set(traces) and len(named) == line.get("in_flight", 1)
    last = muttered("crowd")[-1]
    assert last["in_flight"] > 3 and "correlation" not in last and "correlations" not in last

    def crashed() -> list[Any]:
        return lines_of(
            gateway, lambda line: re.search("server 'probe' .* calls in flight|server probe (was|exit)", line["event"])
        )

    assert eventually(lambda: len(crashed()) >= 2)
    assert all((line["session"], line["correlation"]) == (first.id, dying) for line in crashed()), crashed()


@requirement("ctx.correlation-right", "ops.figures")
def test_the_start_of_a_server_is_told_with_its_process_and_its_session(
    gateway: RunningGateway, http: httpx.Client
) -> None:
    client = Traced(gateway, http, 7)
    pid = int(tool_text(client.tool("probe__pid")))
    (line,) = lines_of(gateway, lambda line: line["event"] == "process started" and line.get("pid") == pid)
    assert (line["server"], line["session"], line["trust"]) == ("probe", client.id, "direct")
    assert line["took_s"] >= 0 and sessions(gateway)[client.id] == line["correlation"]
