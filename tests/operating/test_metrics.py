"""What is counted, timed and traced, that no client can make it more, and what blocks the event loop."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.operating.conftest import ADMIN, Pair
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, ROOT, SIGNED, RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, Modern, tool_text
from tests.support.redis_server import RunningRedis
from tests.support.span_collector import Received, collecting
from tests.support.waiting import eventually

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(gateway: RunningGateway, ops: httpx.Client, accept: str = "text/plain") -> Series:
    response = ops.get(f"{gateway.base}/metrics", headers={"Accept": accept})
    assert response.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return sum(v for (n, have), v in series.items() if n == name and labels.items() <= dict(have).items())


@requirement("ops.health", "ops.figures")
def test_each_way_a_request_ends_is_counted(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    gateway, _ = pair
    before = scrape(gateway, ops)
    client = Legacy(f"{gateway.base}/servers/probe/mcp", http).open()
    client.tool("pid")
    client.tool("fail")
    client.tool("crash")
    client.call("tools/call", {"name": "pid", "arguments": "none"})
    Modern(f"{gateway.base}/servers/demo/mcp", http).tool("slow", {"steps": "many"})
    modern = Modern(f"{gateway.base}/servers/demo/mcp", http)
    modern.tool("ask")
    Legacy(f"{gateway.base}/servers/probe/mcp", http).call("tools/list")
    after = scrape(gateway, ops)

    def more(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    total = "mcp_gateway_requests_total"
    assert more("mcp_gateway_argument_errors_total", fault="schema") == 1
    assert more(total, outcome="ok", method="initialize") == 1
    assert more(total, outcome="ok", method="tools/call", server="probe", era="legacy") == 1
    assert more(total, outcome="tool_error", method="tools/call", server="probe") == 1
    assert more(total, outcome="tool_error", method="tools/call", server="demo") == 1, "wrong arguments, never sent"
    assert more(total, outcome="error", method="tools/call", server="probe") >= 1, "a crash"
    assert more(total, outcome="input_required", method="tools/call", server="demo", era="modern") == 1
    assert more(total, outcome="refused", method="tools/list") == 1, "it names no session"
    assert more("mcp_gateway_request_duration_seconds_count", server="probe") >= 3
    operations = "mcp_server_operation_duration_seconds_count"  # OpenTelemetry's name
    own = "mcp_gateway_request_duration_seconds_count"
    assert more(operations, error_type="tool_error", mcp_method_name="tools/call", server="probe") == 1
    assert more(operations, error_type="refused", mcp_method_name="tools/list") == 1
    assert more(operations, error_type="") >= 3 and more(operations) == more(own)
    assert more("mcp_gateway_session_events_total", event="created") == 3
    starts = "mcp_gateway_server_starts_total"
    assert more(starts, server="probe", outcome="started") >= 1 and more(starts, server="probe", outcome="failed") == 0
    assert client.delete().status_code == 200
    ages = "mcp_server_session_duration_seconds"
    counted = {name: value(scrape(gateway, ops), f"{ages}_{name}", event="ended") for name in ("count", "sum")}
    assert counted["count"] - value(before, f"{ages}_count", event="ended") == 1
    assert counted["sum"] > value(before, f"{ages}_sum", event="ended")
    calls, after = "mcp_gateway_session_calls", scrape(gateway, ops)
    assert [value(after, f"{calls}_{name}") - value(before, f"{calls}_{name}") for name in ("count", "sum")] == [1, 3]
    assert value(after, "mcp_gateway_store_up") == 1 and value(after, "mcp_gateway_replicas") >= 2
    assert value(after, "mcp_gateway_server_processes", server="demo") >= 1


@requirement("ops.health")
def test_what_clients_choose_makes_no_series(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    gateway, _ = pair

    def storm(number: int) -> None:
        client = Legacy(f"{gateway.base}/servers/demo/mcp", http).open(name=f"client-{number}")
        client.tool(f"no-such-tool-{number}")
        client.call(f"no/such-method-{number}")
        Modern(f"{gateway.base}/servers/demo/mcp", http).send(f"made/up-{number}")

    storm(0)
    known = scrape(gateway, ops).keys()
    for number in range(1, 20):
        storm(number)
    grown = scrape(gateway, ops).keys() - known
    assert not {name for name, _ in grown}, grown


@requirement("ops.health")
def test_forwarded_calls_are_counted_once_and_told_apart(pair: Pair, ops: httpx.Client, http: httpx.Client) -> None:
    owner, other = pair
    client = Legacy(f"{owner.base}/servers/demo/mcp", http).open()
    before = [scrape(gateway, ops) for gateway in pair]
    client.url = f"{other.base}/servers/demo/mcp"
    client.tool("whoami")
    after = [scrape(gateway, ops) for gateway in pair]
    calls = [
        value(a, "mcp_gateway_requests_total") - value(b, "mcp_gateway_requests_total")
        for a, b in zip(after, before, strict=True)
    ]
    hops = [
        value(a, "mcp_gateway_forwarded_total") - value(b, "mcp_gateway_forwarded_total")
        for a, b in zip(after, before, strict=True)
    ]
    assert calls == [1, 0] and hops == [0, 1]


def test_the_exposition_is_openmetrics_where_that_is_asked_for(
    pair: Pair, ops: httpx.Client, http: httpx.Client
) -> None:
    gateway, _ = pair
    Legacy(f"{gateway.base}/servers/demo/mcp", http).open()  # a series begins with its first request
    asked = ops.get(f"{gateway.base}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert asked.headers["content-type"].startswith("application/openmetrics-text") and asked.text.endswith("# EOF\n")
    assert re.search(r'_bucket\{[^}]*le="0.0003"', asked.text)


# -- one trace for one call


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


def lineage(spans: list[Received]) -> list[Received]:
    """The span of the server's last call of `echo` and those that it is within, the outermost first."""
    by_id = {span.id: span for span in spans}
    found = sorted((span for span in spans if span.service == "server" and "echo" in span.name), key=lambda s: s.began)
    found = found[-1:]
    while found and found[0].parent in by_id:
        found.insert(0, by_id[found[0].parent])
    return found


@requirement("ops.health", "ctx.correlation")
def test_one_call_is_one_trace_across_client_two_replicas_and_server(
    redis_server: RunningRedis, http: httpx.Client
) -> None:
    """A session is opened at replica A; a client of the SDK calls a tool of it, a server of the SDK, by replica B."""
    with collecting() as collector, contextlib.ExitStack() as stack:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        program = (sys.executable, "-m", "tests.support.traced_programs")
        servers = {"features": server((*program, "server"), cwd=str(ROOT), env={**endpoint, "PYTHONPATH": str(ROOT)})}
        options = {"store": redis_server.url}
        here, there = (
            stack.enter_context(running_gateway(servers, options=options, env=SIGNED | endpoint | named))
            for named in ({"OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id=replica {name}"} for name in "AB")
        )
        session = Modern(here.url, http).tool("echo", {"text": "hello"}).headers["mcp-gateway-session"]
        client = [*program, "client", there.url, session]
        ran = subprocess.run(
            client, env={**os.environ, **endpoint}, cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        assert "hi" in ran.stdout, ran.stderr
        assert eventually(lambda: len(lineage(collector.spans)) == 7), "gateways send theirs now and then"
        spans = lineage(collector.spans)
    assert [(span.service, span.kind) for span in spans] == [
        ("agent", "internal"),
        ("agent", "client"),
        ("replica B", "server"),
        ("replica B", "client"),  # forwards
        ("replica A", "server"),
        ("replica A", "client"),
        ("server", "server"),
    ]
    assert len({span.trace for span in spans}) == 1
    call = spans[4]
    assert (call.facts["mcp.method.name"], call.facts["gen_ai.tool.name"]) == ("tools/call", "echo")
    assert call.name == "tools/call echo" and len(call.facts["mcp.session.id"]) == 8


@requirement("ops.health", "ctx.correlation")
def test_a_trace_goes_on_to_the_server_and_spans_say_how_a_call_failed(
    probe: RunningGateway, http: httpx.Client
) -> None:
    def meta(url: str, **how: Any) -> Any:
        return json.loads(tool_text(Modern(url, http).tool("meta", **how)))

    url = probe.at("probe")
    assert CONTEXT.items() <= meta(url, meta=CONTEXT).items(), "from _meta, as it came"
    assert CONTEXT.items() <= meta(url, headers=CONTEXT).items(), "from headers"
    assert "traceparent" not in meta(url, headers={"traceparent": "00-no-good"})
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with running_gateway({"probe": server(PROBE)}, env=env) as gateway:
            told = meta(gateway.url, headers=CONTEXT)
            _, trace, parent, _ = told["traceparent"].split("-")
            assert trace == TRACE and parent != PARENT and told["tracestate"] == "vendor=1"
            # A client cannot pose as a replica that forwards.
            forged = {"mcp-gateway-traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
            assert "1" * 32 not in meta(gateway.url, headers=forged)["traceparent"]
            assert eventually(lambda: any(span.id == parent for span in collector.spans))
            client = Legacy(gateway.url, http).open()
            client.tool("fail")
            client.tool("crash")
            Legacy(gateway.url, http).call("tools/list")
    [call] = [span for span in collector.spans if span.id == parent]
    [request] = [span for span in collector.spans if span.id == call.parent]
    assert request.parent == PARENT and (request.kind, call.kind) == ("server", "client")
    failed = {span.name: span for span in collector.spans if span.kind == "server" and span.failed}
    assert failed["tools/call fail"].facts["error.type"] == "tool_error"
    assert failed["tools/call crash"].facts["rpc.response.status_code"] == "-32014"
    assert failed["tools/list"].facts["rpc.response.status_code"].startswith("-32")


# -- what blocks the event loop is in metrics and log

SERVERS = {"stalling": {"in_process": "tests.support.sdk_servers:stalling"}}
STALLS = "mcp_gateway_loop_stall_seconds"


def stalls_over(gateway: RunningGateway, ops: httpx.Client, seconds: str) -> float:
    series = scrape(gateway, ops)
    return value(series, f"{STALLS}_count") - value(series, f"{STALLS}_bucket", le=seconds)


def is_idle(process: psutil.Process) -> bool:
    """Whether it does nothing but beat for a while."""
    before = process.cpu_times()
    time.sleep(0.3)
    return process.cpu_times() == before


@requirement("ops.stalls", "ops.health")
def test_a_stall_is_in_metrics_and_log(http: httpx.Client, ops: httpx.Client) -> None:
    with running_gateway(SERVERS, options={"admin": ADMIN}) as gateway:
        client = Legacy(gateway.url, http).open()
        before = stalls_over(gateway, ops, "0.5")

        def is_named() -> bool:
            assert tool_text(client.tool("block", {"seconds": 1.0})) == "ok"
            named = r"the event loop was blocked for (\d\.\d+) s \(.*tests\.support\.sdk_servers:\d+ keep_the_loop < "
            return eventually(lambda: re.search(named, gateway.stderr()) is not None, 1)

        assert eventually(is_named), gateway.stderr()  # a stall of its start would have the one line of 10 s
        assert eventually(lambda: stalls_over(gateway, ops, "0.5") > before)
        assert value(scrape(gateway, ops), "mcp_gateway_collector_pause_seconds_count") >= 0
        generations = {dict(labels).get("generation") for name, labels in scrape(gateway, ops) if "collector" in name}
        assert generations == {"0", "1", "2"}


@requirement("ops.stalls")
def test_a_process_that_was_stopped_while_idle_blames_no_code() -> None:
    with running_gateway(SERVERS) as gateway:
        process = psutil.Process(gateway.pid)
        assert eventually(lambda: is_idle(process)), "what it does when it is stopped would be named: its start"

        def is_told() -> bool:
            process.send_signal(signal.SIGSTOP)
            assert eventually(lambda: process.status() == psutil.STATUS_STOPPED)
            assert not eventually(lambda: "the process did not run" in gateway.stderr(), 1.5)
            process.send_signal(signal.SIGCONT)
            return eventually(lambda: "the process did not run" in gateway.stderr(), 1)

        assert eventually(is_told), gateway.stderr()  # a stall of its start would have the one line of 10 s
