"""The interface of a call in flight that observability uses. `gateway.calls` implements it."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from gateway.observability.outcome import Outcome
from gateway.observability.spans import CallSpan
from session_store import Session

__all__ = ["Counted", "Failure", "LogFacts", "ObservedExchange", "Watcher"]

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
        """For the next owner."""
        return msgspec.json.encode(self).decode()


_counted: Final = msgspec.json.Decoder(Counted)
_NOTHING: Final = Counted()


class ObservedExchange(Protocol):
    """One request of a client while it is in flight."""

    @property
    def method(self) -> str: ...

    @property
    def tool(self) -> str:
        """The name of the tool; empty for other methods."""
        ...

    @property
    def is_listed(self) -> bool:
        """False for a call of a tool that its server does not list."""
        ...

    @property
    def era(self) -> str:
        """The client's era."""
        ...

    @property
    def server(self) -> str:
        """The server that has the call; empty if none has it."""
        ...

    @property
    def session(self) -> Session | None: ...

    @property
    def log_facts(self) -> LogFacts:
        """Fields of its log lines, beside what every call has; empty for most calls."""
        ...

    @property
    def began(self) -> float:
        """When the request arrived, by the monotonic clock."""
        ...

    @property
    def correlation(self) -> str: ...

    def watch(self, watcher: "Watcher") -> None:
        """Call `watcher` when the request ends."""
        ...

    def unwatch(self) -> CallSpan | None:
        """Remove all watchers and the span, because the call is not sent. Returns the span that was set, if any."""
        ...

    def begin(self, at: float, correlation: str, span: CallSpan | None) -> None:
        """Set when the request arrived, what correlates its log lines, and the span of the call."""
        ...

    def take_span(self) -> CallSpan | None:
        """Remove and return the span of the call."""
        ...

    def count(self, failure: Failure | None) -> None:
        """Count the call in its session; `failure` if it failed."""
        ...


Watcher = Callable[[ObservedExchange, Outcome, bytes], None]
"""Called once with the outcome of a request and, for an error or a failed tool, the error or result as JSON."""
