"""What a backend of the session store must do, and how it fails. `session_store.testing` is the contract as tests."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from session_store.session import Principal, Session

__all__ = ["Event", "EventLog", "Gone", "SessionStore", "StoreError", "StoreFull", "StoreUnavailable", "UnknownEvent"]


class StoreError(Exception):
    """Something is wrong with the store itself, never with what a client sent."""


class StoreUnavailable(StoreError):
    """The store did not answer in time. Nothing is known about the session: never answer as if it were gone."""


class StoreFull(StoreError):
    """No room for one more session, and none that is idle could make room."""


class UnknownEvent(LookupError):
    """The event id is not one of this session's, or is older than what the log still holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A session that ended by itself, and why."""

    session: Session
    reason: Literal["expired", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream: its id, and the frame (empty for a priming event)."""

    id: str
    frame: bytes


class SessionStore(Protocol):
    """Sessions by id, and by alias.

    Missing, expired and ended are one answer, None. Every method may raise `StoreUnavailable`. Concurrent calls are
    safe: of two that create under one alias both get the same session, and no update of a field is lost.
    """

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        """Keep `session`. With an alias that already names a live session, return that one instead, used and confirmed.

        Raises:
            StoreFull: the store is bounded and every session in it is in use.
        """
        ...

    async def resume(self, session_id: str, principal: Principal) -> Session | None:
        """The live session of that id, its idle time starting anew, and confirmed: a client came back with it.

        Somebody else's session is None as well, and is left untouched.
        """
        ...

    async def resume_alias(self, alias: str) -> Session | None:
        """The live session that alias names, as `resume` returns it; it names the principal as well."""
        ...

    async def peek(self, session_id: str) -> Session | None:
        """The live session of that id, unchanged."""
        ...

    async def touch(self, session_id: str) -> bool:
        """Start the idle time anew; False when the session is gone."""
        ...

    async def update(self, session_id: str, **fields: object) -> Session | None:
        """Set these fields of the record and no others."""
        ...

    async def end(self, session_id: str) -> bool:
        """Forget the session at once. True for the one caller that ended it; again is harmless."""
        ...

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        """Live sessions in order of id, from the first id beyond `after`."""
        ...

    async def sweep(self) -> list[Gone]:
        """Forget and return what ended by itself. Each such session is returned exactly once, to one caller."""
        ...


class EventLog(Protocol):
    """What went out on the event streams of a session, so that a client can read on after a break.

    A session has many streams; ids are unique to the session, and another session's id is never found. The log is
    capped per session; the oldest events go first.
    """

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Keep a frame and return its event id."""
        ...

    async def finish(self, session_id: str, stream: str) -> None:
        """Nothing more will be appended to that stream; who follows it comes to its end."""
        ...

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncIterator[Event]:
        """The events of a stream after that id, then each new one as it comes, until the stream is finished.

        `after` None means what nobody has been given yet (see `delivered`).
        """
        ...

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """The stream that event belongs to. Raises `UnknownEvent`."""
        ...

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """A client was given that event: a follower that names no event starts behind it."""
        ...

    async def drop(self, session_id: str) -> None:
        """Forget the session's streams; their followers come to an end."""
        ...
