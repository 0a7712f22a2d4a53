"""The trace context of requests: read and written as OpenTelemetry's propagator does."""

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.observability.spans import Tracing, carried_on
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Message

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"
PARENTS = [
    GOOD,
    f"00-{TRACE}-{SPAN}-00",
    f"00-{TRACE}-{SPAN}-03",
    f" {GOOD} ",
    f"01-{TRACE}-{SPAN}-01-more",
    f"00-{TRACE}-{SPAN}-01-more",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    "00-",
    "",
]


@pytest.mark.parametrize("state", ["", "vendor=1", "bad state"])
@pytest.mark.parametrize("parent", PARENTS)
def test_the_parent_of_a_request_is_what_the_propagator_reads(parent: str, state: str) -> None:
    headers = {"traceparent": parent} | ({"tracestate": state} if state else {})
    message = Message(jsonrpc="2.0", id=1, method="tools/call")
    request = Request(era=Era.LEGACY, endpoint="/mcp", headers=headers, message=message)
    read = trace.get_current_span(TraceContextTextMapPropagator().extract(headers, Context())).get_span_context()

    span, meta = Tracing(TracerProvider().get_tracer("t")).arrived(request).call(None, {})
    trace_id, tracestate = bytes(meta["traceparent"])[4:36].decode(), bytes(meta.get("tracestate", b'""'))
    assert (trace_id == trace.format_trace_id(read.trace_id)) is read.is_valid
    assert tracestate.decode().strip('"') == (read.trace_state.to_header() if read.is_valid else "")
    assert ("traceparent" in carried_on({}, headers)) is read.is_valid
    if span is not None:
        span.dropped()
