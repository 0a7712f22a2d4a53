"""What is seen of each request: counted, timed, logged in one line, traced, and kept with its session when it fails."""

import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterator
from time import monotonic, time
from typing import Any, Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import Failure, LiveSession
from gateway.errors import CANCELLED
from gateway.observability.logs import CORRELATION
from gateway.observability.metrics import FAILURES, Metrics, Outcome
from gateway.observability.spans import Tracing, carried_on, request_span
from session_store import Principal, Session
from session_store.metadata import scrubbed_text
from session_store.session import redact
from transports.inbound_port import Refused, Request
from transports.jsonrpc import Object

__all__ = ["RequestLog"]

logger = logging.getLogger(__name__)

_MOST_WORDS: Final = 300
_KEPT_FAILURES: Final = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


class _Said(msgspec.Struct):
    """Of an error, or of a tool's result: what is for people."""

    message: str = ""
    content: list[dict[str, Any]] = []


class RequestLog:
    """The one who is told how each request ends."""

    def __init__(self, metrics: Metrics, *, lines_per_s: int, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self.tracing = tracing
        self._lines_per_s = lines_per_s
        self._left = lines_per_s
        self._left_out = 0
        self._watchers = (self._finished,)

    def begin(self, exchange: Exchange, request: Request, meta: Object, correlation: str) -> Object:
        """Watch a call that is about to be sent on its way; `_meta` with the trace it belongs to."""
        exchange.watchers = (*exchange.watchers, self._finished) if exchange.watchers else self._watchers
        if "traceparent" in request.headers:
            meta = carried_on(meta, request.headers)
        return self._began(exchange, request, meta, correlation)

    def begin_again(self, exchange: Exchange, request: Request, correlation: str) -> None:
        """The client of a call that waited for it has come back."""
        self._began(exchange, request, {}, correlation)

    def _began(self, exchange: Exchange, request: Request, meta: Object, correlation: str) -> Object:
        exchange.began = request.arrived_at or monotonic()
        exchange.correlation = correlation
        if self.tracing is not None and (span := request_span()) is not None:
            exchange.span, meta = span.call(exchange, meta)
        return meta

    @staticmethod
    def forget(exchange: Exchange) -> None:
        """It was never sent: what becomes of its request is told otherwise."""
        exchange.watchers = ()
        if exchange.span is not None:
            exchange.span.dropped()

    def _finished(self, exchange: Exchange, outcome: str, told: bytes) -> None:
        took_s = monotonic() - exchange.began
        conversation, live = exchange.conversation, exchange.live
        server = "" if conversation is None else conversation.name
        kind = _kind_of(outcome)
        self.metrics.answered(server, exchange.method, exchange.era, kind, took_s)
        if live is not None:
            live.calls += 1
        why = ""
        if kind in FAILURES:
            why = _words(told)
            if live is not None:
                _remember(live, exchange, server, outcome, why)
        if exchange.span is not None:
            exchange.span.finished(kind, outcome, server)
            exchange.span = None
        if self._left > 0:
            self._left -= 1
            self._line_of(exchange, outcome, took_s, server, why)
        else:
            self._left_out += 1

    def _line_of(self, exchange: Exchange, outcome: str, took_s: float, server: str, why: str) -> None:
        session = None if exchange.live is None else exchange.live.session
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
        )

    @contextlib.contextmanager
    def forwarding(self, session: Session, replica: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """Around a request that another replica is asked to answer: headers that say what it belongs to."""
        if self.tracing is None:
            yield []
            return
        with self.tracing.forwarding(session, replica) as headers:
            yield [(name.encode(), value.encode()) for name, value in headers.items()]

    def answered(self, request: Request, principal: Principal, error_code: int | None) -> None:
        """A request was answered without a call."""
        self._told(request, principal, "ok" if error_code is None else f"error {error_code}", "")

    def refused(self, request: Request, principal: Principal | None, refused: Refused) -> None:
        """A request got no further."""
        self._told(request, principal, f"refused {refused.code}", str(refused))

    def _told(self, request: Request, principal: Principal | None, outcome: str, why: str) -> None:
        method = "" if request.message is None else str(request.message.method)
        took_s = monotonic() - request.arrived_at if request.arrived_at else 0.0
        kind = _kind_of(outcome)
        self.metrics.answered("", method, request.era, kind, took_s)
        if self.tracing is not None and (span := request_span()) is not None:
            span.ended(kind, outcome)
        # Logging a line costs half as much as relaying a call.
        if self._left > 0:
            self._left -= 1
            who = "" if principal is None else str(principal)
            correlation = CORRELATION.get()
            self._line(method, outcome, took_s, era=request.era, principal=who, reason=why, correlation=correlation)
        else:
            self._left_out += 1

    def another_second(self, at: float) -> None:
        """A second is over."""
        self.metrics.history.take(at)
        if self._left_out and self._lines_per_s:
            logger.info("%d more requests were answered and not logged one by one", self._left_out)
        self._left, self._left_out = self._lines_per_s, 0

    @staticmethod
    def _line(method: str, outcome: str, took_s: float, **more: str) -> None:
        facts = {name: value for name, value in more.items() if value}
        known = _CONTROL.sub(" ", method)[:64]
        logger.info(known, extra={"outcome": outcome, "took_ms": round(took_s * 1_000, 2), **facts})


def _remember(live: LiveSession, exchange: Exchange, server: str, outcome: str, why: str) -> None:
    """Keep a failure with its session."""
    live.failed += 1
    if live.failures is None:
        live.failures = deque(maxlen=_KEPT_FAILURES)
    name = f"{exchange.method} {exchange.tool}".strip()
    live.failures.append(Failure(time(), server, name, outcome, why, exchange.correlation))


def _kind_of(outcome: str) -> Outcome:
    if outcome == "ok":
        return "ok"
    if outcome == f"error {CANCELLED}":
        return "cancelled"
    if outcome.startswith("error"):
        return "error"
    if outcome.startswith("refused"):
        return "refused"
    return outcome  # type: ignore[return-value]  # the others are called what they are


def _words(told: bytes) -> str:
    """What a failed call says of itself to people, in one line and without what looks like a credential."""
    try:
        said = msgspec.json.decode(told, type=_Said)
    except msgspec.MsgspecError:
        return ""
    texts = (part["text"] for part in said.content if isinstance(part.get("text"), str))
    return scrubbed_text(_CONTROL.sub(" ", said.message or next(texts, ""))[:_MOST_WORDS])
