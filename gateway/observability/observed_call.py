"""The facts of a call in flight that logs, spans and the audit trail need, and the counts of calls of a session."""

import logging
import math
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gateway.observability.request_outcomes import CANCELLED, Outcome
from gateway.observability.tracing import CallSpan
from session_store import Session
from session_store.session import redact

logger = logging.getLogger(__name__)

LogFacts = Mapping[str, str | bool]
"""The fields of a log line, by name. Empty and false values are left out."""


class Failure(msgspec.Struct, frozen=True):
    """A failed call of a session, for operators."""

    at: float  # Unix time
    server: str
    name: str
    """Its method, and the tool if it called one."""
    outcome: str
    why: str
    """The error message."""
    correlation: str
    """The correlation id of the request."""


class Counted(msgspec.Struct, frozen=True):
    """The counts of a session's answered and failed calls, and its last failures."""

    calls: int = 0
    failed: int = 0
    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, text: str) -> "Counted":
        """Decode the counts that the session's previous owner has stored (`Session.counted`). If they are invalid,
        return zeros."""
        try:
            return _counted.decode(text) if text else _NOTHING
        except msgspec.MsgspecError:
            return _NOTHING

    def text(self) -> str:
        """Encode the counts for the session's next owner."""
        return msgspec.json.encode(self).decode()


_counted: Final = msgspec.json.Decoder(Counted)
_NOTHING: Final = Counted()


class ObservedCall:
    """The base class of a client's request in flight (`gateway.calls.exchange`). It has the facts for observability:
    the callbacks for the outcome, the span, and the fields of log lines."""

    method: str

    # Defaults of the class: most calls never set these, and so need no memory for them.
    tool = ""
    meant_for = ""  # the server that has the tool
    is_listed = True
    slow_s = math.inf
    written_at = 0.0  # when the server got it, by the monotonic clock
    began = 0.0
    correlation = ""
    span: CallSpan | None = None
    is_audited = False
    is_refused = False
    watchers: "tuple[Watcher, ...]" = ()
    hung_since = 0.0  # `written_at`, once it was logged as slow before it had an answer
    log_facts: LogFacts = MappingProxyType({})  # further fields of its log lines

    @property
    def era(self) -> str:
        """Return the era of the client: `legacy` or `modern`."""
        raise NotImplementedError

    @property
    def server(self) -> str:
        """Return the name of the server to which the call was sent; empty if it was sent to none."""
        raise NotImplementedError

    @property
    def session(self) -> Session | None:
        """Return the record of the call's session, if it has one."""
        raise NotImplementedError

    def count(self, failure: Failure | None) -> None:
        """Add the call to the counts of its session. `failure`: None if the call succeeded."""
        raise NotImplementedError

    def begin(self, at: float, correlation: str, span: CallSpan | None) -> None:
        """Set when the request arrived (`at`, monotonic clock), its correlation id, and the span of the call."""
        self.began, self.correlation = at, correlation
        if span is not None:
            self.span = span

    def note(self, name: str, value: str) -> None:
        """Add an attribute to the span of the call, if there is one."""
        if self.span is not None:
            self.span.note(name, value)

    def take_span(self) -> CallSpan | None:
        span = self.span
        if span is not None:
            self.span = None
        return span

    def watch(self, watcher: "Watcher") -> None:
        """Register a callback that is called when the request ends."""
        self.watchers = (*self.watchers, watcher)

    def audit(self, watcher: "Watcher") -> None:
        """Register the callback that records the call in the audit trail when the request ends. Ignore further
        callbacks: this is called again if a call could not be sent at once and is admitted a second time."""
        if not self.is_audited:
            self.is_audited = True
            self.watch(watcher)

    def was_refused(self) -> None:
        """Record that the audit trail has the call as refused. It then gets no event for the end of the call."""
        self.is_refused = True

    def unwatch(self) -> CallSpan | None:
        """Remove all callbacks and the span, so that nothing is recorded when the call ends. Return the span; None if
        there was none."""
        self.watchers = ()
        return self.take_span()

    def left(self) -> None:
        """Call the callbacks for the end of the call, with the outcome `cancelled`. Called when the request has ended
        without an answer."""
        self._notify(CANCELLED)

    def _notify(self, outcome: Outcome, answer: bytes = b"") -> None:
        watchers, self.watchers = self.watchers, ()
        for watcher in watchers:
            watcher(self, outcome, answer)

    def calls_tool(self, server: str, tool: str, slow_s: float, *, is_listed: bool) -> None:
        """Set the tool and its server for logs and records, which need them also if the call is never sent. The call is
        logged as slow if it takes longer than `slow_s` seconds. `is_listed`: the server lists the tool."""
        self.meant_for, self.tool, self.slow_s, self.is_listed = server, tool, slow_s, is_listed

    def answered_from(self, *, cache: bool) -> None:
        """Record whether a part of the answer, or all of it, came from the cache. Called once for each part. The log
        line says `cached` only if all parts did."""
        self.add_log_facts({"cached": cache and self.log_facts.get("cached") is not False})

    def add_log_facts(self, facts: LogFacts) -> None:
        """Add fields to the call's log lines. `gateway.observability.logs` lists the names that lines show."""
        self.log_facts = {**self.log_facts, **facts}

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of a log line about this call. May be called in any task."""
        return {
            "server": self.server,
            "tool": self.tool,
            "session": "" if self.session is None else redact(self.session.id),
            "correlation": self.correlation,
            **{name: value for name, value in self.log_facts.items() if value},
        }

    def log_if_hanging(self, now: float) -> None:
        """Log the call as slow, once, if its server has not answered within `slow_s`. `now`: monotonic clock."""
        if now - self.written_at > self.slow_s and not self.hung_since:
            self.hung_since = self.written_at
            fields = self.log_fields() | {"took_s": round(now - self.written_at, 3)}
            logger.warning("slow call, not answered yet", extra=fields)

    def log_if_slow(self) -> None:
        """Log the call as slow if it took longer than `slow_s` seconds. Called when it has ended."""
        if self.slow_s is math.inf or not self.written_at:
            return
        took_s = monotonic() - (self.hung_since or self.written_at)
        if took_s > self.slow_s:
            logger.warning("slow call", extra=self.log_fields() | {"took_s": round(took_s, 3)})


Watcher = Callable[[ObservedCall, Outcome, bytes], None]
"""Type of a callback for the end of a request. Its arguments: the call, the outcome, and, for a failure, the error or
result as JSON."""
