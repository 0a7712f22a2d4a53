"""The trace context of requests is what the SDK reads of it, and whether it is recorded what its sampler decides."""

import logging
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.observability.request_outcomes import OK
from gateway.observability.tracing import GivenIds, Sampling, Tracing, collector_variable, tracing, with_trace_context
from tests.requirements import requirement
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Message

pytestmark = requirement("hot.sampling")

RATES = [0.0, 1e-9, 0.01, 0.3, 0.5, 0.999, 1.0]
SAMPLERS: Sequence[Sampler] = [
    *(ALWAYS_ON, ALWAYS_OFF, DEFAULT_ON, DEFAULT_OFF),
    *(TraceIdRatioBased(rate) for rate in RATES),
    *(ParentBasedTraceIdRatio(rate) for rate in RATES),
    ParentBased(ALWAYS_OFF, remote_parent_sampled=TraceIdRatioBased(0.5), remote_parent_not_sampled=ALWAYS_ON),
]


def named(sampler: Sampler) -> str:
    return str(sampler.get_description())


def a_request(parent: str = "", state: str = "") -> Request:
    given = {"traceparent": parent, "tracestate": state}
    headers = {name: value for name, value in given.items() if value}
    message = Message(jsonrpc="2.0", id=1, method="tools/call")
    return Request(era=Era.LEGACY, endpoint="/mcp", headers=headers, message=message)


def takes(sampler: Sampler, context: Context, trace_id: int) -> bool:
    """What the SDK's sampler decides."""
    return bool(sampler.should_sample(context, trace_id, "tools/call").decision.is_sampled())  # type: ignore[no-untyped-call]  # no hint


@pytest.mark.parametrize("sampler", SAMPLERS, ids=named)
def test_the_decision_is_that_of_the_sampler(sampler: Sampler) -> None:
    sampling = Sampling.of(TracerProvider(sampler=sampler).get_tracer("t"), GivenIds())
    assert sampling is not None
    edges = [round(rate * (1 << 64)) + step for rate in RATES for step in (-2, -1, 0, 1)]
    ids = [
        *(7 << 64 | half for half in edges if 0 <= half < 1 << 64),
        *(random.getrandbits(128) or 1 for _ in range(200)),
    ]
    for trace_id in ids:
        assert sampling.takes_new(trace_id) is takes(sampler, Context(), trace_id)
        for flags in range(4):
            parent = SpanContext(trace_id, 1, True, TraceFlags(flags))
            context = trace.set_span_in_context(NonRecordingSpan(parent), Context())
            assert sampling.takes(parent) is takes(sampler, context, trace_id)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=named)
def test_a_server_gets_the_parent_that_the_sdk_would_make(sampler: Sampler) -> None:
    provider = TracerProvider(sampler=sampler)
    ours, sdk = Tracing(provider.get_tracer("t")), provider.get_tracer("t")
    for number in range(20):
        state = "vendor=1" if number % 5 == 0 else ""
        request = a_request(f"00-{random.getrandbits(128) | 1:032x}-b7ad6b7169203331-{number % 4:02x}", state)
        arrived = ours.arrived(request)
        span, meta = arrived.call(None, {})
        context = TraceContextTextMapPropagator().extract(request.headers, Context())
        theirs = sdk.start_span("tools/call", context=context).get_span_context()
        version, trace_id, span_id, got = bytes(meta["traceparent"])[1:-1].decode().split("-")
        assert (version, trace_id, int(got, 16)) == ("00", f"{theirs.trace_id:032x}", theirs.trace_flags)
        assert arrived.correlation == trace_id and len(span_id) == 16 and int(span_id, 16)
        assert bytes(meta.get("tracestate", b'""'))[1:-1].decode() == state
        if span is not None:
            span.dropped()


def test_of_new_traces_the_configured_part_is_recorded_under_the_ids_that_logs_have() -> None:
    exporter, ids = InMemorySpanExporter(), GivenIds()
    provider = TracerProvider(sampler=TraceIdRatioBased(0.3), id_generator=ids)  # type: ignore[arg-type]  # without its base class
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("t"), ids)
    correlations = []
    for _ in range(3_000):
        arrived = tracing.arrived(a_request())
        span, meta = arrived.call(None, {})
        _, trace_id, _, flags = bytes(meta["traceparent"])[1:-1].decode().split("-")
        assert trace_id == arrived.correlation and bool(int(flags, 16) & 1) is (span is not None)
        if span is not None:
            correlations.append(arrived.correlation)
            span.finished(OK, "demo")
    assert 700 < len(correlations) < 1_100
    requests = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert [f"{span.context.trace_id:032x}" for span in requests] == correlations
    assert len(exporter.get_finished_spans()) == 2 * len(correlations)


def test_what_is_not_known_is_left_to_the_sdk() -> None:
    class Odd(TraceIdRatioBased):
        def get_description(self) -> str:
            return "ByTheHour"

    odd = TracerProvider(sampler=Odd(0.0)).get_tracer("t")
    assert Sampling.of(odd, GivenIds()) is None
    assert Sampling.of(trace.NoOpTracerProvider().get_tracer("t"), GivenIds()) is None
    # The id of a new trace is known beforehand only where the gateway has made the provider.
    provider = TracerProvider(sampler=ALWAYS_OFF)
    _, meta = Tracing(provider.get_tracer("t")).arrived(a_request()).call(None, {})
    assert int(bytes(meta["traceparent"])[4:36], 16)


def test_an_id_is_for_the_thread_that_it_was_given_to() -> None:
    ids = GivenIds()
    ids.give(7)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(ids.generate_trace_id).result() != 7
    assert ids.generate_trace_id() == 7
    assert ids.generate_trace_id() != 7


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"
PARENTS = [
    *(GOOD, f" {GOOD} ", "00-", ""),
    *(f"00-{TRACE}-{SPAN}-{flags}" for flags in ("00", "03", "01-more")),
    *(f"{version}-{TRACE}-{SPAN}-01" for version in ("01", "ff")),
    *(f"00-{trace_id}-{SPAN}-01" for trace_id in ("0" * 32, TRACE.upper())),
    f"00-{TRACE}-{'0' * 16}-01",
    f"01-{TRACE}-{SPAN}-01-more",
]


@pytest.mark.parametrize("state", ["", "vendor=1", "bad state"])
@pytest.mark.parametrize("parent", PARENTS)
def test_the_parent_of_a_request_is_what_the_propagator_reads(parent: str, state: str) -> None:
    request = a_request(parent or " ", state)
    headers = request.headers
    read = trace.get_current_span(TraceContextTextMapPropagator().extract(headers, Context())).get_span_context()

    span, meta = Tracing(TracerProvider().get_tracer("t")).arrived(request).call(None, {})
    trace_id, tracestate = bytes(meta["traceparent"])[4:36].decode(), bytes(meta.get("tracestate", b'""'))
    assert (trace_id == trace.format_trace_id(read.trace_id)) is read.is_valid
    assert tracestate.decode().strip('"') == (read.trace_state.to_header() if read.is_valid else "")
    assert ("traceparent" in with_trace_context({}, headers)) is read.is_valid
    if span is not None:
        span.dropped()


ENDPOINT, OF_TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
COLLECTOR = {ENDPOINT: "http://127.0.0.1:9"}


@requirement("ops.health")
@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({}, ""),
        ({ENDPOINT: ""}, ""),
        (COLLECTOR, ENDPOINT),
        ({OF_TRACES: "http://127.0.0.1:9/v1/traces"}, OF_TRACES),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "True"}, ""),
        ({**COLLECTOR, "OTEL_SDK_DISABLED": "false"}, ENDPOINT),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "otlp"}, ENDPOINT),
    ],
)
def test_the_variables_of_opentelemetry_say_whether_spans_are_sent(environ: dict[str, str], variable: str) -> None:
    assert collector_variable(environ) == variable
    if not variable:
        assert tracing("1", environ) is None


@requirement("ops.health")
def test_a_collector_without_the_packages_for_it_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.INFO):
        assert tracing("1", COLLECTOR) is None
    [line] = caplog.messages
    assert ENDPOINT in line and "pip install 'mcp-session-gateway[tracing]'" in line
