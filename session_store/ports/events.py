"""The store of events of a session's streams, from which a client can resume after a broken connection."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Event", "EventLog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream: its id and its frame (empty for a priming event)."""

    id: str
    frame: bytes


class EventLog(Protocol):
    """The events sent on the streams of a session, so that a client can resume reading after a break.

    A session has many streams. Event ids are unique in the session, and an id of another session is unknown. The log of
    a session is bounded; the oldest events are dropped first.
    """

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Store a frame and return its event id."""
        ...

    async def finish(self, session_id: str, stream: str) -> None:
        """Mark the stream as complete: its followers end after its last event."""
        ...

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        """The events of a stream after that id, then each new one, until the stream is finished.

        `after` None starts behind the last event that was delivered (see `delivered`).
        """
        ...

    async def kept(self, session_id: str, stream: str, after: str) -> list[Event]:
        """The events of a stream after that one, without waiting for more. Raises `UnknownEvent`."""
        ...

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """The id of the stream that the event belongs to. Raises `UnknownEvent`."""
        ...

    async def unfinished(self, session_id: str) -> list[str]:
        """The streams of a session that are not finished and have events in the log."""
        ...

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """Record that a client received that event. A follower that names no event continues after it."""
        ...

    async def drop(self, session_id: str) -> None:
        """Delete the session's streams and end their followers."""
        ...
