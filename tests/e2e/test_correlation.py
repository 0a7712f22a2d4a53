"""What is told of a request: log lines with its ids, the audit trail, and the id in each error."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config.settings import Settings
from gateway.serving.app import create_app
from session_store import MemoryBackend
from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import DEMO, PROBE, RunningGateway, running_gateway, server
from tests.support.mcp_clients import (
    ACCEPT,
    Legacy,
    Modern,
    failed_text,
    messages,
    modern_body,
    modern_headers,
    tool_text,
)
from tests.support.redis_server import RunningRedis
from tests.support.waiting import eventually

SLOW_S = 0.3
AT_ONCE = 24


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    servers = {
        "probe": server(PROBE),
        "noting": {"in_process": "tests.support.sdk_servers:noting"},
    }
    options = {"log_format": "json", "log_level": "debug", "policy": {"slow_s": SLOW_S}}
    lines = {"gateway.observability.request_log.LINES_PER_S": 1_000}
    with running_gateway(servers, options=options, constants=lines) as running:
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
    client = Traced(gateway, http, 3)
    quick, slow = client.trace(), client.trace()
    assert tool_text(client.traced("probe__sleep", quick, seconds=0)) == "slept"
    assert tool_text(client.traced("probe__sleep", slow, seconds=SLOW_S + 0.7)) == "slept"
    assert eventually(lambda: len(of_traces(gateway, {slow})) >= 3)
    lines = of_traces(gateway, {quick, slow})
    took_ms = {line["correlation"]: line["took_ms"] for line in lines if "took_ms" in line}
    of_slow_calls = [line for line in lines if line["event"].startswith("slow call")]
    # A starved machine may make the quick call slow as well. It counts from when the server got it, not from its start.
    assert took_ms.keys() == {quick, slow}
    assert all(took_ms[line["correlation"]] > SLOW_S * 1e3 for line in of_slow_calls)
    told = [line for line in of_slow_calls if line["correlation"] == slow]
    assert [line["event"] for line in told] == ["slow call, not answered yet", "slow call"]
    assert all((line["session"], line["server"], line["tool"]) == (client.id, "probe", "sleep") for line in told)
    assert SLOW_S < told[0]["took_s"] < told[1]["took_s"]


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
    assert "error" in messages(first.traced("probe__crash", dying))[-1]

    def muttered(word: str) -> list[Any]:
        return lines_of(gateway, lambda line: re.fullmatch(f"server probe: {word}", line["event"]) is not None)

    assert eventually(lambda: len(muttered("m[0-3]")) == 4)
    (line,) = muttered("alone")
    assert (line["session"], line["correlation"], line["server"]) == (first.id, alone, "probe")
    for line in muttered("m[0-3]"):
        client, traces = ((first, pairs[0]), (other, pairs[1]))[int(line["event"][-1]) % 2]
        assert line["session"] == client.id
        named = {line["correlation"]} if "correlation" in line else set(line["correlations"].split())
        assert named <= set(traces) and len(named) == line.get("in_flight", 1)

    def crashed() -> list[Any]:
        return lines_of(
            gateway, lambda line: re.search("server 'probe' .* calls in flight|server probe (was|exit)", line["event"])
        )

    assert eventually(lambda: len(crashed()) >= 2)
    assert all((line["session"], line["correlation"]) == (first.id, dying) for line in crashed()), crashed()


# -- one structured event for what happens to sessions, for each refusal and each tool call


TRACE = "0af7651916cd43dd8448eb211c80319c"


@requirement("life.events", "ctx.correlation", "ops.redact", "pol.trust")
def test_calls_and_refusals_are_told_to_a_file_and_the_store(
    redis_server: RunningRedis, http: httpx.Client, tmp_path: Path
) -> None:
    """A process of its own, whose stderr is the third sink."""
    file = tmp_path / "audit.jsonl"
    redis_server.client().flushall()
    options = {
        "store": redis_server.url,
        "api_keys": API_KEYS,
        "audit": {"calls": True, "to": ["store", "stderr", str(file)]},
        "policy": {"session_rate": {"per_s": 0.01, "burst": 5}, "rules": [{"trust": "sandboxed"}]},
    }
    servers = {"demo": server(DEMO, tools={"recall": {"direct_only": True}}), "probe": server(PROBE)}
    with running_gateway(servers, options=options, env={"MCP_GATEWAY_KEYS": "k" * 40}) as gateway:
        alice = Modern(gateway.url, http, headers=bearer(KEYS["alice"]))
        traced = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        answered = alice.tool("demo__remember", {"key": "k", "value": "a \n secret"}, headers=traced)
        assert tool_text(answered)
        for hidden_or_unknown in ("demo__recall", "demo__nothing"):
            assert "error" in messages(alice.tool(hidden_or_unknown, {"key": "k"}))[-1]
        forged = dict.fromkeys(("event", "principal", "session", "correlation", "outcome", "tool"), "forged")
        assert failed_text(alice.tool("probe__fail", forged))
        while alice.tool("demo__count").status_code != 429:
            pass
        stolen = Legacy(gateway.url, http, headers=bearer("not-a-key"))
        assert stolen.initialize(name="x\nevent=ended").status_code == 401

        def told() -> list[Any]:
            return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

        assert eventually(lambda: any("API key" in event["why"] for event in told()))
        events = told()
        calls = {event["tool"]: event for event in events if event["event"] == "called"}
        assert calls["demo/remember"]["outcome"] == "ok" and calls["probe/fail"]["outcome"] == "tool error"
        remembered = calls["demo/remember"]
        assert remembered["correlation"] == TRACE and remembered["principal"] == "api-key:alice"
        assert 0 < remembered["took_s"] < 10
        assert remembered["session"] == answered.headers["mcp-gateway-session"][:8]
        assert calls["probe/fail"]["principal"] == "api-key:alice", "not what an argument says"
        refused = [(event["tool"], event["why"]) for event in events if event["event"] == "refused"]
        [why] = [why for tool, why in refused if tool == "demo/recall"]
        assert "direct trust" in why and [tool for tool, _ in refused].count("demo/nothing") == 1, refused
        assert any("Too many requests" in why for _, why in refused)
        everything = file.read_text() + gateway.stderr()
        assert not any(word in everything for word in ("secret", "forged", KEYS["alice"], "not-a-key"))
        assert eventually(lambda: '"event":"called"' in gateway.stderr()), "each sink has a writer of its own"
    printed = run_command("sessions", "events", "--store", redis_server.url, "--json")
    assert printed.returncode == 0, printed.stderr
    kept = [json.loads(line) for line in printed.stdout.splitlines()]
    assert {"created", "called", "refused"} <= {event["event"] for event in kept}


# -- every error answer has the correlation id of its request, and says nothing of what raised it


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
    "no stream": (-32600, lambda g, h: h.get(g.url)),
    "forged session": (-32010, lambda g, h: Modern(g.url, h).tool("pid", headers={"MCP-Gateway-Session": "x.y"})),
    "notification": (
        -32010,
        lambda g, h: Legacy(g.url, h, headers={"Mcp-Session-Id": "x.y"}).notify("notifications/initialized"),
    ),
    "header mismatch": (-32020, lambda g, h: Modern(g.url, h).tool("pid", headers={"Mcp-Name": "other"})),
    "unknown tool": (-32602, lambda g, h: Modern(g.url, h).tool("nobody__nothing")),
    "server error": (
        -32050,
        lambda g, h: legacy(g, h).open().tool("broken", {"line": SERVER_ERROR % '{"free":0}'}),
    ),
    "crash": (-32014, lambda g, h: legacy(g, h).open().tool("crash")),
    "refused handshake": (-32099, lambda g, h: legacy(g, h, "refusing").initialize()),
    "batch": (
        -32600,
        lambda g, h: legacy_batch(g, h, [{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}]),
    ),
    "event stream": (-32600, lambda g, h: h.get(f"{g.base}/sse", headers={"Host": "evil.example"})),
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
        assert bad.json().get("id") == (7 if method == "POST" else None)
        assert "secret" not in bad.text and "ZeroDivision" not in bad.text and "ZeroDivision" in caplog.text
        again = await http.post("/mcp", json=body, headers={**modern_headers(body), **token})
        assert again.json()["result"]["content"][0]["text"] == "2", "nothing was lost"
