"""Record the end of each request: count and time it, log a line, end its span, and add a failure to its session."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from time import monotonic, time
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gateway.observability.logs import CONTROL, CORRELATION, CallLine, CallLines, in_ms, shown_method
from gateway.observability.metrics import Metrics
from gateway.observability.observed_call import Failure, LogFacts, ObservedCall
from gateway.observability.request_outcomes import OK, EndedCall, Outcome
from gateway.observability.tracing import (
    CallSpan,
    Tracing,
    UnsampledRequest,
    carries_more,
    request_span,
    with_trace_context,
)
from session_store import Principal, Session
from session_store.redaction import scrubbed_start
from session_store.session import redact
from transports.inbound_port import Refused, Request
from transports.jsonrpc import UNREADABLE, Object

logger = logging.getLogger(__name__)

CORRELATION_HEADER: Final = "mcp-gateway-correlation"
"""The header with the correlation id of a forwarded request. It is trusted only in requests from other replicas."""

LINES_PER_S: Final = 100
"""Number of requests with a log line per second; further ones are counted in one line. So a flood of calls does not
fill the log, and costs less: a line takes half as long as relaying a call."""

_MAX_MESSAGE_CHARS: Final = 300
_NONE: Final[LogFacts] = MappingProxyType({})


class _ErrorText(msgspec.Struct):
    """The text in a JSON-RPC error object, or in a tool's result."""

    message: str = ""
    content: list[dict[str, Any]] = []


@dataclass(eq=False, repr=False)
class RequestLog:
    """Record the outcome of each request: count it, log it (at most `LINES_PER_S` lines per second), and end its
    spans."""

    metrics: Metrics
    _: KW_ONLY
    tracing: Tracing | None = None
    """Begins the spans of requests; None if tracing is off."""
    fields: Callable[[Session], Mapping[str, str]] = lambda _: {}
    """Returns the fields of a session's context to add to log lines."""
    lines: CallLines | None = None
    """Buffers the lines of successful calls; None if they are logged immediately."""
    ended: Callable[[EndedCall], None] = lambda call: None
    """Called with every ended call of a session."""

    def __post_init__(self) -> None:
        self._left = LINES_PER_S
        self._left_out = 0

    def begin(self, exchange: ObservedCall, request: Request, meta: Object, correlation: str) -> Object:
        """Begin to record the call `exchange` of a client's `request`, before it is sent to a server: its end will be
        recorded. Return the `_meta` to send, which is `meta` with the trace context added."""
        exchange.watch(self._finished)
        span, meta = None, self.meta_with_trace(meta, request)
        if self.tracing is not None:
            span, meta = _call_span(exchange, meta)
        exchange.begin(request.arrived_at or monotonic(), correlation, span)
        return meta

    def meta_with_trace(self, meta: Object, request: Request) -> Object:
        """Return `meta`, the `_meta` of a call, with the trace context from the request's headers added. If the
        gateway's own span will replace that context, or there is none, return `meta` unchanged."""
        headers = request.headers
        if "traceparent" in headers and (self.tracing is None or carries_more(headers)):
            return with_trace_context(meta, headers)
        return meta

    def may_be_unsampled(self, request: Request) -> bool:
        """Return True if the `traceparent` of a request is enough to decide whether its trace is recorded
        (`Tracing.unsampled`): tracing is off, or the request has no `tracestate` and no `baggage`."""
        return self.tracing is None or not carries_more(request.headers)

    def meta_with_unsampled_trace(self, meta: Object, request: Request, correlation: str) -> tuple[Object, str]:
        """Return `meta`, the `_meta` of a call whose trace is not recorded, with the trace context added. Also return
        the `traceparent` in it; empty if there is none. `correlation`: the trace id, as 32 hex digits."""
        if self.tracing is None:
            meta = self.meta_with_trace(meta, request)
            return meta, request.headers.get("traceparent", "") if "traceparent" in meta else ""
        unsampled = UnsampledRequest(int(correlation, 16), 0)
        return unsampled.call(None, meta)[1], unsampled.parent.decode()

    def begin_again(self, exchange: ObservedCall, request: Request, correlation: str) -> None:
        """Continue to record a suspended call: its client has sent the answers to the server's questions."""
        span = None if self.tracing is None else _call_span(exchange, {})[0]
        exchange.begin(request.arrived_at or monotonic(), correlation, span)

    @staticmethod
    def forget(exchange: ObservedCall) -> None:
        """Undo `begin` for a call that is not sent: its end is not recorded. The caller records the request with
        `refused` instead."""
        if (span := exchange.unwatch()) is not None:
            span.dropped()

    def _finished(self, exchange: ObservedCall, outcome: Outcome, answer: bytes) -> None:
        # A call with wrong arguments is sent to no server: it is found under the one that it was meant for.
        took_s, server = monotonic() - exchange.began, exchange.server or exchange.meant_for
        why, failure = "", None
        if outcome is not OK and outcome.is_failure:
            why = _message_of(answer)
            name = f"{exchange.method} {exchange.tool}".strip()
            failure = Failure(time(), server, name, str(outcome), why, exchange.correlation)
        exchange.count(failure)
        if self.tracing is not None and (span := exchange.take_span()) is not None:
            span.finished(outcome, server)
        if (session := exchange.session) is not None:
            call = EndedCall(
                time(),
                exchange.method,
                exchange.tool,
                server,
                outcome,
                took_s,
                session,
                exchange.correlation,
                why,
                exchange.is_listed,
            )
            if not (outcome.is_failure or exchange.log_facts):
                self.record_success(call, exchange.era)
                return
            self.ended(call)
        self.metrics.answered(server, exchange.method, exchange.era, outcome.kind, took_s)
        if self._has_line():
            self._line(
                exchange.method,
                outcome,
                took_s,
                era=exchange.era,
                server=server,
                tool=exchange.tool,
                session="" if session is None else redact(session.id),
                principal="" if session is None else str(session.principal),
                correlation=exchange.correlation,
                reason=why,
                context={} if session is None else self.fields(session),
                about=exchange.log_facts,
            )

    def _has_line(self) -> bool:
        """Return True if one more line may be written in this second; else count it as left out."""
        if self._left > 0:
            self._left -= 1
            return True
        self._left_out += 1
        return False

    def record_success(self, call: EndedCall, era: str) -> None:
        """Record a successful call whose log line has only the usual fields. `era`: `legacy` or `modern`, by the
        client's protocol version."""
        self.metrics.answered(call.server, call.method, era, call.outcome.kind, call.took_s)
        self.ended(call)
        if self._left <= 0:  # as `_has_line`, written out: every call of the fast path comes here
            self._left_out += 1
            return
        self._left -= 1
        session, context = call.session, self.fields(call.session)
        if self.lines is not None:
            self.lines.add(CallLine(call, era, context))
            return
        self._line(
            call.method,
            call.outcome,
            call.took_s,
            era=era,
            server=call.server,
            tool=call.tool,
            session=redact(session.id),
            principal=str(session.principal),
            correlation=call.correlation,
            context=context,
        )

    @contextlib.contextmanager
    def forwarding(self, session: Session, replica: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the headers, with correlation id and trace context, to add to a request that is forwarded to `replica`
        inside the block. At the end of the block, the request's span ends."""
        correlated = [(CORRELATION_HEADER.encode(), CORRELATION.get().encode())]
        if self.tracing is None:
            yield correlated
            return
        with self.tracing.forwarding(session, replica) as headers:
            yield [*correlated, *((name.encode(), value.encode()) for name, value in headers.items())]

    def answered(
        self, request: Request, principal: Principal | None, outcome: Outcome, about: LogFacts, why: str
    ) -> None:
        """Record a request that the gateway answered itself, without sending a call to a server. `about`: fields of its
        log line, such as its session. `why`: the error message."""
        method = "" if request.message is None else str(request.message.method)
        took_s = monotonic() - request.arrived_at if request.arrived_at else 0.0
        self.metrics.answered("", method, request.era, outcome.kind, took_s)
        if self.tracing is not None and (span := request_span()) is not None:
            span.ended(outcome)
        # Logging a line costs half as much as relaying a call.
        if self._has_line():
            who = "" if principal is None else str(principal)
            facts = {"principal": who, "reason": why, "correlation": CORRELATION.get()}
            self._line(method, outcome, took_s, era=request.era, about=about, **facts)

    def refused(self, request: Request, principal: Principal | None, refused: Refused) -> None:
        """Record a request that was refused before it became a call."""
        self.answered(request, principal, Outcome.refused(refused.code), refused.log_facts, str(refused))

    def refused_by_wire(self, refused: Refused) -> None:
        """Log a refused HTTP request that is in no metrics of calls: it was refused before its body was parsed, or is
        no call."""
        if self._has_line():
            outcome, correlation = Outcome.refused(refused.code), refused.correlation
            self._line("request refused", outcome, 0.0, reason=str(refused), correlation=correlation)

    def end_second(self, at: float) -> None:
        """End the present second, at the Unix time `at`: add its sample to the metrics, log how many lines the limit
        left out, and reset the limit. Called each second."""
        self.metrics.end_second(at)
        if self._left_out:
            logger.info("%d more requests were answered (limit: %d lines a second)", self._left_out, LINES_PER_S)
        self._left, self._left_out = LINES_PER_S, 0

    @staticmethod
    def _line(
        method: str, outcome: Outcome, took_s: float, *, about: LogFacts = _NONE, **more: str | Mapping[str, str]
    ) -> None:
        facts: dict[str, Any] = {name: value for name, value in more.items() if value}
        if about:
            facts |= {name: value for name, value in about.items() if value}
        logger.info(shown_method(method), extra={"outcome": str(outcome), "took_ms": in_ms(took_s), **facts})


def _call_span(exchange: ObservedCall, meta: Object) -> tuple[CallSpan | None, Object]:
    """Begin a span for a call, below the span of the present request. Return the span of the call, and `meta` with the
    trace context added. For an `UnsampledRequest`, the span is None. Without tracing, return None and `meta`."""
    span = request_span()
    return (None, meta) if span is None else span.call(exchange.session, meta)


def _message_of(answer: bytes) -> str:
    """Return the message of a JSON-RPC error, or the first text of a failed tool's result, as one line with credentials
    redacted; empty if `answer` has neither. `answer`: the error or the result, as JSON."""
    try:
        found = msgspec.json.decode(answer, type=_ErrorText)
    except UNREADABLE:
        return ""
    texts = (part["text"] for part in found.content if isinstance(part.get("text"), str))
    return CONTROL.sub(" ", scrubbed_start(found.message or next(texts, ""), _MAX_MESSAGE_CHARS))
