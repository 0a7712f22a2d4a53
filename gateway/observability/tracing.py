"""Record spans of requests and calls by OpenTelemetry's conventions for MCP, and send the trace context to servers and
other replicas.

The trace context is the one of W3C: `traceparent`, `tracestate` and `baggage` in `_meta` (SEP-414), else in headers.
"""

import asyncio
import contextlib
import logging
import os
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.config.configuration_errors import missing_extra
from gateway.observability.request_outcomes import Outcome
from gateway.protocol.methods import METHODS
from session_store import Session
from session_store.session import redact
from transports.inbound_port import Request
from transports.jsonrpc import Object, encode

logger = logging.getLogger(__name__)

RANDOM_TRACE_ID: Final = int(getattr(TraceFlags, "RANDOM_TRACE_ID", 0))
"""The flag for a random trace id (W3C Trace Context level 2); 0 if this version of OpenTelemetry does not have it."""

_HALF: Final = 64
_LOWER: Final = (1 << _HALF) - 1
_ROOT: Final = r"(?:AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{[0-9.e+-]+\})"
_KNOWN: Final = re.compile(
    rf"{_ROOT}|ParentBased\{{root:{_ROOT}(?:,(?:remote|local)Parent(?:Not)?Sampled:{_ROOT}){{4}}\}}"
)
"""Matches the descriptions of the standard samplers of OpenTelemetry. Other samplers may decide by other facts than the
trace id and the parent's flag."""


class GivenIds(threading.local):
    """Generate random ids for the OpenTelemetry SDK (its `IdGenerator`). `give` sets the id of the next trace in
    advance, for a trace whose sampling was already decided by this id."""

    def __init__(self) -> None:
        self._given = 0

    def give(self, trace_id: int) -> None:
        """Set the id of the next trace that this thread begins."""
        self._given = trace_id

    def generate_trace_id(self) -> int:
        given, self._given = self._given, 0
        return given or new_trace_id()

    def generate_span_id(self) -> int:
        return new_span_id()

    def is_trace_id_random(self) -> bool:
        return True


def new_trace_id() -> int:
    return random.getrandbits(128) or new_trace_id()


def new_span_id() -> int:
    return random.getrandbits(64) or new_span_id()


class Sampling:
    """Decide whether a trace is recorded, exactly as the OpenTelemetry SDK's sampler does, but without beginning a
    span. `ids`: the id generator of the SDK, which takes ids of new traces from here; None if the SDK has its own.

    The SDK needs 13 µs to begin a span, even one that is not recorded. Its samplers compare the lower half of the trace
    id with a bound, which depends on the parent's flag. The constructor finds these bounds by asking the sampler. Not
    used without the SDK's packages.
    """

    def __init__(self, sampler: Any, ids: GivenIds | None) -> None:
        self.ids = ids
        self._root = _bound(sampler, None)
        self._children = {flag: _bound(sampler, flag) for flag in (TraceFlags.DEFAULT, TraceFlags.SAMPLED)}

    @classmethod
    def of(cls, tracer: Tracer, ids: GivenIds | None) -> "Sampling | None":
        """Return the `Sampling` of a tracer's sampler; None if its decisions may depend on more than the trace id and
        the parent's flag."""
        sampler = getattr(tracer, "sampler", None)
        if sampler is None or _KNOWN.fullmatch(sampler.get_description()) is None:
            return None
        return cls(sampler, ids)

    def takes_new(self, trace_id: int) -> bool:
        return trace_id & _LOWER < self._root

    def takes(self, parent: SpanContext) -> bool:
        """Return True if a request with this parent span, from another process, is recorded."""
        return parent.trace_id & _LOWER < self._children[parent.trace_flags & TraceFlags.SAMPLED]


def _bound(sampler: Any, flag: int | None) -> int:
    """Return the bound of `sampler`: it samples a trace if the lower half of the trace id is below this number. `flag`:
    the trace flags of the parent span; None if there is no parent."""

    def is_sampled(half: int) -> bool:
        trace_id = 1 << _HALF | half
        context = Context()
        if flag is not None:
            parent = NonRecordingSpan(SpanContext(trace_id, 1, True, TraceFlags(flag)))
            context = trace.set_span_in_context(parent, context)
        return bool(sampler.should_sample(context, trace_id, "").decision.is_sampled())

    low, high = 0, 1 << _HALF
    while low < high:
        half = (low + high) // 2
        low, high = (half + 1, high) if is_sampled(half) else (low, half)
    return low


PEER_HEADER: Final = "mcp-gateway-traceparent"
"""The header with the parent span of a forwarded request. It is trusted only in requests from other replicas."""

_CONTEXT: Final = ("traceparent", "tracestate", "baggage")
_W3C = TraceContextTextMapPropagator()
_PARENT: Final = re.compile(r"00-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})")
"""Matches a `traceparent` of version 00 (W3C Trace Context §3.2.2). The SDK's propagator parses other versions."""
_ARRIVED: ContextVar["RequestSpan | UnsampledRequest | None"] = ContextVar("arrived", default=None)


class RequestSpan:
    """The span of a client's request, on the replica that received the request. It ends with the request's answer."""

    def __init__(self, tracer: Tracer, name: str, context: Context, attributes: Mapping[str, Any]) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._span = tracer.start_span(
            name,
            context=context,
            kind=SpanKind.SERVER,
            attributes={**attributes, "network.protocol.name": "http", "network.transport": "tcp"},
        )

    @property
    def context(self) -> Context:
        """Return the OpenTelemetry context in which this span is the parent."""
        return trace.set_span_in_context(self._span, Context())

    @property
    def correlation(self) -> str:
        """Return the id of the trace as 32 hex digits, which is the correlation id of the request."""
        return format(self._span.get_span_context().trace_id, "032x")

    def call(self, session: Session | None, meta: Object) -> tuple["CallSpan", Object]:
        """Begin a span for the call to a server. Return this span, and `meta` with the trace context that makes the
        span the parent of the server's spans.

        If the request is not sampled, its calls are not sampled either, whatever the sampler decides. Then the server
        gets the request's span as the parent.
        """
        span = self._span
        if span.is_recording():
            if session is not None:
                self.belongs_to(session)
            span = self._tracer.start_span(
                self._name, context=self.context, kind=SpanKind.CLIENT, attributes=self._attributes
            )
        parent = {name: msgspec.Raw(encode(value)) for name, value in _carrier(span).items()}
        return CallSpan(self, span), meta | parent

    def belongs_to(self, session: Session) -> None:
        """Add the session and its principal to the span."""
        if self._span.is_recording():
            self._span.set_attributes({"mcp.session.id": redact(session.id), "enduser.id": str(session.principal)})

    def ended(self, outcome: Outcome) -> None:
        _end(self._span, outcome)

    def passed_on(self) -> None:
        """End the span without an outcome: another replica answers the request and records its outcome."""
        self._span.end()


class UnsampledRequest:
    """A request whose trace is not recorded. It has the methods of `RequestSpan`. The flags in its `traceparent` tell
    servers that the trace is not recorded."""

    __slots__ = ("_flags", "_span_id", "correlation")

    def __init__(self, trace_id: int, flags: int) -> None:
        self.correlation = trace_id.to_bytes(16).hex()
        self._span_id = new_span_id()
        self._flags = flags

    @property
    def context(self) -> Context:
        """Return the OpenTelemetry context in which this request is the parent."""
        own = SpanContext(int(self.correlation, 16), self._span_id, False, TraceFlags(self._flags))
        return trace.set_span_in_context(trace.NonRecordingSpan(own), Context())

    @property
    def parent(self) -> bytes:
        """Return the `traceparent` to send to servers."""
        return b"00-%b-%016x-%02x" % (self.correlation.encode(), self._span_id, self._flags)

    def call(self, _: Session | None, meta: Object) -> tuple[None, Object]:
        """Return None in place of the call's span, and `meta` with the `traceparent` added."""
        return None, {**meta, "traceparent": msgspec.Raw(b'"%b"' % self.parent)}

    def belongs_to(self, session: Session) -> None:
        """Do nothing: there is no span."""

    def ended(self, outcome: Outcome) -> None:
        """Do nothing: there is no span."""

    def passed_on(self) -> None:
        """Do nothing: there is no span."""


class CallSpan:
    """The span of a call to a server."""

    def __init__(self, request: RequestSpan, span: Span) -> None:
        self._request = request
        self._span = span

    def finished(self, outcome: Outcome, server: str) -> None:
        """End the span of the call and the span of its request, both with the outcome."""
        self._span.set_attribute("mcp_gateway.server", server)
        _end(self._span, outcome)
        self._request.ended(outcome)

    def note(self, name: str, value: str) -> None:
        self._span.set_attribute(name, value)

    def dropped(self) -> None:
        """End the span without an outcome: the call was not sent."""
        self._span.end()


class Tracing:
    """Begin the spans of requests. `ids`: the id generator that the tracer uses; None if the tracer has its own."""

    def __init__(self, tracer: Tracer, ids: GivenIds | None = None) -> None:
        self._tracer = tracer
        self._sampling = Sampling.of(tracer, ids)
        self._drawn = 0  # the trace id for the next request that has no parent

    def unsampled(self, traceparent: str) -> UnsampledRequest | None:
        """Decide by the `traceparent` of a request (empty if it has none) if the request is recorded. If it is not
        recorded, return an `UnsampledRequest`. If it is recorded, or if the `traceparent` does not decide it, return
        None: the caller then uses `arrived`, which decides in the same way. Not for requests with a `tracestate`."""
        parent = _parent_in({"traceparent": traceparent}) if traceparent else None
        if parent is not None or self._sampling is None or self._sampling.ids is None:
            return self._unsampled(parent)
        self._drawn = self._drawn or new_trace_id()
        return None if self._sampling.takes_new(self._drawn) else UnsampledRequest(self._drawn, RANDOM_TRACE_ID)

    def unsampled_id_used(self) -> None:
        """Discard the trace id that `unsampled` has generated, so that no later request gets it. Called when the
        `UnsampledRequest` with this id is used."""
        self._drawn = 0

    def arrived(self, request: Request) -> RequestSpan | UnsampledRequest:
        """Begin the span of a request and return it; if the request is not recorded, return an `UnsampledRequest`. What
        is returned becomes the parent of later spans of the current task (`request_span`)."""
        if request.forwarded is None:
            parent = _parent_in(request.meta) or _parent_in(request.headers)
        else:
            parent = _parent_in({"traceparent": request.headers.get(PEER_HEADER)})
        arrived = self._unsampled(parent) or self._begun(request, parent)
        _ARRIVED.set(arrived)
        return arrived

    def _unsampled(self, parent: SpanContext | None) -> UnsampledRequest | None:
        """Return an `UnsampledRequest` if a request with this parent is not recorded. Return None if it is recorded, or
        if only the SDK can decide."""
        sampling = self._sampling
        if sampling is None:
            return None
        if parent is not None:
            if parent.trace_state or sampling.takes(parent):
                return None
            return UnsampledRequest(parent.trace_id, parent.trace_flags & RANDOM_TRACE_ID)
        if sampling.ids is None:
            return None
        trace_id, self._drawn = self._drawn or new_trace_id(), 0
        if sampling.takes_new(trace_id):
            sampling.ids.give(trace_id)
            return None
        return UnsampledRequest(trace_id, RANDOM_TRACE_ID)

    def _begun(self, request: Request, parent: SpanContext | None) -> RequestSpan:
        message = request.message
        method = "" if message is None else str(message.method)
        attributes: dict[str, Any] = {
            "mcp.method.name": method,
            "mcp.protocol.version": request.protocol_version,
        }
        if message is not None and isinstance(message.id, int | str):
            attributes["jsonrpc.request.id"] = str(message.id)
        target = _target(method, request.params)
        if target and method == "tools/call":
            attributes |= {"gen_ai.tool.name": target, "gen_ai.operation.name": "execute_tool"}
        name = f"{method} {target}" if target else method
        context = Context()
        if parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
        return RequestSpan(self._tracer, name, context, attributes)

    @contextlib.contextmanager
    def forwarding(self, session: Session, replica: str) -> Iterator[dict[str, str]]:
        """Yield headers to add to a request that is forwarded to `replica`: they make the spans of that replica part of
        this trace. Empty if the present request has no span. At the end of the block, the span of the request ends, and
        that of the forwarding."""
        arrived = _ARRIVED.get()
        if arrived is None:
            yield {}
            return
        arrived.belongs_to(session)
        span = self._tracer.start_span(
            "forward", context=arrived.context, kind=SpanKind.CLIENT, attributes={"mcp_gateway.replica": replica}
        )
        try:
            yield {PEER_HEADER: parent} if (parent := _carrier(span).get("traceparent")) else {}
        finally:
            span.end()
            arrived.passed_on()


def request_span() -> RequestSpan | UnsampledRequest | None:
    """Return the span of the request that the current task serves, or the `UnsampledRequest` in its place; None if
    tracing is off."""
    return _ARRIVED.get()


def _carrier(span: Span) -> dict[str, str]:
    context = span.get_span_context()
    if context.is_valid and not context.trace_state:
        ids = f"{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
        return {"traceparent": f"00-{ids}-{context.trace_flags:02x}"}
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier


def carries_more(headers: Mapping[str, str]) -> bool:
    """Return True if the headers have a `tracestate` or `baggage`, beyond `traceparent`."""
    return "tracestate" in headers or "baggage" in headers


def with_trace_context(meta: Object, headers: Mapping[str, str]) -> Object:
    """Return `_meta` with the trace context of the headers added. Return it unchanged if it already has a trace
    context, or if the headers have no valid one."""
    if "traceparent" not in headers or "traceparent" in meta:
        return meta
    if _PARENT.fullmatch(headers["traceparent"]) is None and _parent_in(headers) is None:
        return meta
    return meta | {name: msgspec.Raw(encode(headers[name])) for name in _CONTEXT if name in headers}


def _parent_in(carrier: Mapping[str, Any]) -> SpanContext | None:
    """Return the parent span in headers or `_meta`; None if there is no valid one."""
    value = carrier.get("traceparent")
    if not isinstance(value, str):
        return None
    if "tracestate" not in carrier and (match := _PARENT.fullmatch(value)) is not None:
        trace_id, span_id, flags = match.groups()
        return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
    text = {name: value for name in _CONTEXT[:2] if isinstance(value := carrier.get(name), str)}
    parent = trace.get_current_span(_W3C.extract(text, Context())).get_span_context()
    return parent if parent.is_valid else None


def _target(method: str, params: Object) -> str:
    row = METHODS.get(method)
    raw = params.get("name") if row is not None and row.named == "name" else None
    try:
        return str(msgspec.json.decode(raw))[:128] if raw is not None else ""
    except msgspec.MsgspecError:
        return ""


def _end(span: Span, outcome: Outcome) -> None:
    if outcome.is_failure:
        # OpenTelemetry, Semantic conventions for MCP: a tool's own failure, or the code of the JSON-RPC error.
        span.set_attribute("error.type", "tool_error" if outcome.code is None else str(outcome.code))
        if outcome.code is not None:
            span.set_attribute("rpc.response.status_code", str(outcome.code))
        span.set_status(Status(StatusCode.ERROR))
    span.end()


_COLLECTORS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_FLUSH_MS: Final = 2_000


def collector_variable(environ: Mapping[str, str]) -> str:
    """Return the name of that environment variable which has the address of a collector of spans. Return an empty text
    if there is none, or if other variables of OpenTelemetry say that no spans are sent."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return ""
    return next((name for name in _COLLECTORS if environ.get(name, "").strip()), "")


def tracing(version: str, environ: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return a `Tracing` for the tracer provider of this program, if the environment names a collector. If the program
    has no provider, set up one that sends spans by OTLP over HTTP.

    If the packages for that are missing, log how to install them and return None: a variable that a platform gives to
    all its programs must not keep the gateway from starting.
    """
    variable, ids = collector_variable(environ), None
    if not variable:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            logger.warning("no spans are sent: %s", missing_extra(variable, "tracing"))
            return None
        named = Resource({"service.name": "mcp-session-gateway", "service.version": version})
        ids = GivenIds()
        provider = TracerProvider(
            resource=named.merge(OTELResourceDetector().detect()),
            id_generator=ids,  # type: ignore[arg-type]  # their base class is in a package that may be missing here
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return Tracing(trace.get_tracer("mcp_session_gateway", version), ids)


async def flush() -> None:
    """Send all buffered spans, within `_FLUSH_MS`. Called before the process exits, because an exit by a signal would
    not send them."""
    send = getattr(trace.get_tracer_provider(), "force_flush", None)
    if send is not None:
        await asyncio.to_thread(send, _FLUSH_MS)
