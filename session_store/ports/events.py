"""Define the store of a session's stream events, from which a client can resume after a broken connection."""

from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from session_store.ports.cluster import count_of, nonce_of

MAX_LOG_EVENTS: Final = 256
MAX_LOG_BYTES: Final = 1 << 20
"""Limits for the events of one session. The oldest are dropped first."""

NUMBERS_OF_AN_EPOCH: Final = 1 << 32
"""Event numbers in each epoch of a session (`Session.epoch`). A new owner's numbers are above all earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream: its id and its frame (empty for a priming event)."""

    id: str
    frame: bytes


class Entry(NamedTuple):
    """An event to be written under a reserved number. `ends`: the stream is finished with it; if its frame is empty, it
    is only that mark and no event. `nonce` is that of the reservation: a log that the store has lost gets it again.
    `request` is the call of the stream, kept for an owner that has to make the call again. The end of the stream
    deletes it."""

    number: int
    stream: str
    frame: bytes
    ends: bool = False
    nonce: str = ""
    request: bytes = b""


class Reserved(NamedTuple):
    """Reserved numbers for events of one session: `first` and those after it. `nonce` is that of the session's log."""

    nonce: str
    first: int


def id_of_event(nonce: str, number: int) -> str:
    """Return the id of the event with that number in the log with that nonce."""
    return f"{nonce}-{number}"


def numbers_of(epoch: int) -> tuple[int, int]:
    """Return the number before the first one of an epoch, and its last one. Two epochs with equal counts (a failover
    has forgotten a claim) begin at different numbers, so that no id names two events."""
    first = count_of(epoch) * NUMBERS_OF_AN_EPOCH
    return first + nonce_of(epoch), first + NUMBERS_OF_AN_EPOCH


def last_after(last: int, count: int, epoch: int) -> int | None:
    """Return the last number after `count` more are reserved in that epoch; None if a later epoch has numbers."""
    below, most = numbers_of(epoch)
    above = max(last, below) + count
    return above if above <= most else None


class EventStreams(Protocol):
    """Store the events sent on the streams of a session, so that a client can resume reading after a break.

    A session has many streams. Event ids are unique in the session, and an id of another session is unknown. The log of
    a session is bounded; the oldest events are dropped first.
    """

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Append a frame to the stream, and return its event id."""

    async def finish(self, session_id: str, stream: str) -> None:
        """Mark the stream as complete: its followers end after its last event."""

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream after that id, then each new one, until the stream is finished.

        `after` None starts after the last event that was delivered (see `delivered`).
        """

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """Return the id of the stream that the event belongs to.

        Raises:
            UnwrittenEvent: its number was reserved, and nothing was written under it.
            UnknownEvent: it is not of this session, or too old.
        """

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        """Return the unfinished streams of a session with events in the log, sorted. True: the request is kept."""

    async def take_request(self, session_id: str, stream: str) -> bytes:
        """Delete the kept request of a stream, and return it; empty if there is none. Of several callers, on any
        replicas, only one gets it."""

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """Record that a client received that event. A follower that names no event continues after it."""

    async def drop(self, session_id: str) -> None:
        """Delete the session's streams and end their followers."""

    async def release(self, session_id: str) -> None:
        """Stop serving the session in this process. Return when the store has all its events, or does not answer."""


class EventLog(EventStreams, Protocol):
    """Extend `EventStreams` with methods that write the events of many sessions together."""

    async def reserve(self, session_id: str, count: int, epoch: int = 0) -> Reserved | None:
        """Reserve that many numbers for events that are written later. They are above all earlier ones. `epoch` is that
        of the session's record when the caller became its owner.

        Return None, and change nothing, if an owner of a later epoch has reserved numbers.
        """

    async def write(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        """Store events of several sessions, by session, under reserved numbers in rising order.

        An event is left out if its number is not above the last one in the log: it is written already, or another
        process has written since. So a failed write can be repeated. Its request is left out with it. A request is also
        left out if the session's requests would take more than a quarter of the bytes that its events may take.

        Return the failure of each session whose events were not stored, or perhaps not. `StoreUnavailable`: a retry may
        succeed. Another exception: no retry can. The events of all other sessions are stored. A raised exception means
        the same for all sessions; unless it is `StoreUnavailable`, for at least one of them.
        """

    def part_of(self, session_id: str) -> Hashable:
        """Return the part of the store that has the session's log, such as a node of a cluster. One part may fail while
        others answer. A store without parts returns the same value for all sessions."""

    async def kept(self, session_id: str, stream: str, after: str) -> list[Event]:
        """Return the events of a stream after that id, without waiting for more. Raises `UnknownEvent`."""
