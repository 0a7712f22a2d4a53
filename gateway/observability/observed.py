"""A call in flight as observability sees it, and what is counted of calls."""

import logging
import math
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gateway.observability.outcome import CANCELLED, Outcome
from gateway.observability.tracing import CallSpan
from session_store import Session
from session_store.session import redact

__all__ = ["Counted", "Failure", "LogFacts", "ObservedCall", "Watcher"]

logger = logging.getLogger(__name__)

LogFacts = Mapping[str, str | bool]
"""Fields of a log line, by name. Empty and false ones are left out."""


class Failure(msgspec.Struct, frozen=True):
    """A call that failed: the server, what was called, the outcome, and the message of the error."""

    at: float  # Unix time
    server: str
    name: str
    outcome: str
    why: str
    correlation: str


class Counted(msgspec.Struct, frozen=True):
    """The answered calls of a session: how many, how many of them failed, and the last failures."""

    calls: int = 0
    failed: int = 0
    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Counted":
        """Read what an earlier owner has left (`Session.counted`). Nothing, if that is not readable any more."""
        try:
            return _counted.decode(text) if text else _NOTHING
        except msgspec.MsgspecError:
            return _NOTHING

    def text(self) -> str:
        """Write them for the next owner."""
        return msgspec.json.encode(self).decode()


_counted: Final = msgspec.json.Decoder(Counted)
_NOTHING: Final = Counted()


class ObservedCall:
    """One request of a client while it is in flight, and what is told of it: who is notified of its outcome, its span,
    its log lines. `gateway.calls.exchange` has the rest of it."""

    method: str

    # What most calls never need stands here once, not in each of them.
    tool = ""
    is_listed = True
    slow_s = math.inf
    written_at = 0.0  # when the server got it, by the monotonic clock
    began = 0.0
    correlation = ""
    span: CallSpan | None = None
    is_audited = False
    watchers: "tuple[Watcher, ...]" = ()
    hung_since = 0.0  # `written_at`, once it was logged as slow before it had an answer
    log_facts: LogFacts = MappingProxyType({})  # of its log lines, beside what every call has

    @property
    def era(self) -> str:
        """Return the client's era."""
        raise NotImplementedError

    @property
    def server(self) -> str:
        """Return the server that has the call; empty if none has it."""
        raise NotImplementedError

    @property
    def session(self) -> Session | None:
        """Return the record of its session."""
        raise NotImplementedError

    def count(self, failure: Failure | None) -> None:
        """Count the call in its session; `failure` if it failed."""
        raise NotImplementedError

    def begin(self, at: float, correlation: str, span: CallSpan | None) -> None:
        """Set when the request arrived, what correlates its log lines, and the span of the call."""
        self.began, self.correlation = at, correlation
        if span is not None:
            self.span = span

    def note(self, name: str, value: str) -> None:
        """Add an attribute to the span of the call, if there is one."""
        if self.span is not None:
            self.span.note(name, value)

    def take_span(self) -> CallSpan | None:
        """Remove and return the span of the call."""
        span = self.span
        if span is not None:
            self.span = None
        return span

    def watch(self, watcher: "Watcher") -> None:
        """Call `watcher` when the request ends."""
        self.watchers = (*self.watchers, watcher)

    def audit(self, watcher: "Watcher") -> None:
        """Call the watcher that records the call in the audit trail when the request ends. Later ones are ignored: a
        call that could not be sent at once is admitted again."""
        if not self.is_audited:
            self.is_audited = True
            self.watch(watcher)

    def unwatch(self) -> CallSpan | None:
        """Forget all watchers, and the span, which is returned."""
        self.watchers = ()
        return self.take_span()

    def left(self) -> None:
        """Tell the watchers that a request without an answer was cancelled: the wire is done with it."""
        self._notify(CANCELLED)

    def _notify(self, outcome: Outcome, answer: bytes = b"") -> None:
        watchers, self.watchers = self.watchers, ()
        for watcher in watchers:
            watcher(self, outcome, answer)

    def calls_tool(self, tool: str, slow_s: float) -> None:
        """Set the tool, as logs name it. A call that takes longer than `slow_s` is logged as slow."""
        self.tool, self.slow_s = tool, slow_s

    def calls_unlisted(self) -> None:
        """Record that the server does not list the tool of this call."""
        self.is_listed = False

    def answered_from(self, *, cache: bool) -> None:
        """Record whether its answer, or a part of the answer, was kept from an earlier request (`cache`)."""
        self.add_log_facts({"cached": cache and self.log_facts.get("cached") is not False})

    def add_log_facts(self, facts: LogFacts) -> None:
        """Add fields to its log lines, by the names that `gateway.observability.logs` knows."""
        self.log_facts = {**self.log_facts, **facts}

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of a log line about this call, in whatever task the line is written."""
        return {
            "server": self.server,
            "tool": self.tool,
            "session": "" if self.session is None else redact(self.session.id),
            "correlation": self.correlation,
            **{name: value for name, value in self.log_facts.items() if value},
        }

    def log_if_hanging(self, now: float) -> None:
        """Log a call that the server has had for too long, once, while it has no answer."""
        if now - self.written_at > self.slow_s and not self.hung_since:
            self.hung_since = self.written_at
            fields = self.log_fields() | {"took_s": round(now - self.written_at, 3)}
            logger.warning("slow call, not answered yet", extra=fields)

    def log_if_slow(self) -> None:
        """Log a call that took too long: it has ended."""
        if self.slow_s is math.inf or not self.written_at:
            return
        took_s = monotonic() - (self.hung_since or self.written_at)
        if took_s > self.slow_s:
            logger.warning("slow call", extra=self.log_fields() | {"took_s": round(took_s, 3)})


Watcher = Callable[[ObservedCall, Outcome, bytes], None]
"""Called once with the outcome of a request and, for an error or a failed tool, the error or result as JSON."""
