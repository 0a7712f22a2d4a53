"""Define the store of a session's stream events, from which a client can resume after a broken connection."""

from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from session_store.ports.replica_directory import count_of, nonce_of

MAX_LOG_EVENTS: Final = 256
MAX_LOG_BYTES: Final = 1 << 20
"""The most events, and bytes of events, of one session. The oldest are dropped first."""

NUMBERS_OF_AN_EPOCH: Final = 1 << 32
"""The most event numbers in each epoch of a session (`Session.epoch`). The numbers of a new owner are higher than all
earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream: its id and its frame (empty for a priming event)."""

    id: str
    frame: bytes


class Entry(NamedTuple):
    """An event to write under a reserved number (`EventLog.reserve`)."""

    number: int
    stream: str
    frame: bytes
    ends: bool = False
    """True: the stream is finished after this event. With an empty frame, the entry is no event, and only marks the
    end."""
    nonce: str = ""
    """The nonce from `Reserved`. If the store has lost the log, the new log gets this nonce again."""
    request: bytes = b""
    """The call that the stream answers, or empty. It is stored for a later owner that has to repeat the call, and
    deleted at the end of the stream."""


class Reserved(NamedTuple):
    """Reserved event numbers in the log of one session: `first` and those after it, as many in all as were asked for.
    `nonce` is the log's nonce."""

    nonce: str
    first: int


def id_of_event(nonce: str, number: int) -> str:
    """Return the id of event `number` in the log with this nonce."""
    return f"{nonce}-{number}"


def numbers_of(epoch: int) -> tuple[int, int]:
    """Return the bounds of the event numbers that belong to an epoch: the number before its first one, and its last
    one. Two epochs can have equal counts after a failover. They begin at different numbers, so that no two events have
    the same id."""
    first = count_of(epoch) * NUMBERS_OF_AN_EPOCH
    return first + nonce_of(epoch), first + NUMBERS_OF_AN_EPOCH


def last_after(last: int, count: int, epoch: int) -> int | None:
    """Return the last of `count` numbers that are reserved in this epoch, after the number `last` of the log. Return
    None if `last` belongs to a later epoch, or the epoch has no more numbers."""
    below, most = numbers_of(epoch)
    above = max(last, below) + count
    return above if above <= most else None


class EventStreams(Protocol):
    """Store the events of a session's streams, so that a client can resume reading after its connection breaks.

    A session has many streams. Event ids are unique in the session, and an id of another session is unknown. The log of
    a session has limits; the oldest events are dropped first.
    """

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Append a frame to the stream, and return its event id."""

    async def finish(self, session_id: str, stream: str) -> None:
        """Mark the stream as complete: calls of `follow` end after its last event."""

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream after the id `after`, then each new one, until the stream is finished.

        With `after` None, start after the last event that was delivered (see `delivered`).
        """

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """Return the id of the stream to which the event with this id belongs.

        Raises:
            UnwrittenEvent: the event's number was reserved, but no event was written under it.
            UnknownEvent: the event is not of this session, or too old.
        """

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        """Return the streams that are not finished and have events in the session's log, sorted by name: stream → True
        if its request is stored."""

    async def take_request(self, session_id: str, stream: str) -> bytes:
        """Delete the stored request of a stream, and return it; empty if there is none. If several callers ask, on any
        replicas, only one gets it."""

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """Record that a client has received the event with this id. A later `follow` without an id begins after this
        event."""

    async def drop(self, session_id: str) -> None:
        """Delete the session's streams and end calls of `follow`."""

    async def release(self, session_id: str) -> None:
        """Stop recording events of the session in this process, because another process serves the session next. Return
        when the store has all events of the session, or does not answer."""


class EventLog(EventStreams, Protocol):
    """Extend `EventStreams` with methods that write the events of many sessions together."""

    async def reserve(self, session_id: str, count: int, epoch: int = 0) -> Reserved | None:
        """Reserve `count` numbers for events of the session that are written later, and return the first of them. They
        are higher than all numbers reserved before. `epoch` is the epoch that the session's record got when the caller
        became the session's owner.

        Return None, and change nothing, if an owner of a later epoch has reserved numbers.
        """

    async def write(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        """Store events of several sessions, by session, under reserved numbers in rising order.

        An event, with its request, is skipped if its number is not above the last one in the log: it was written
        before, or another process has written since. So a failed write can be repeated. A request is also skipped if
        the session's requests would use more than a quarter of the bytes that its events may use.

        Return the failure of each session whose events were not stored, or perhaps not. `StoreUnavailable`: a retry may
        succeed. Any other exception: a retry cannot succeed. The events of all other sessions are stored. If this
        method raises `StoreUnavailable`, no session's events were stored; any other exception concerns at least one
        session.
        """

    def part_of(self, session_id: str) -> Hashable:
        """Return the part of the store that has the session's log, such as a node of a cluster. One part may fail while
        others answer. A store without parts returns the same value for all sessions."""

    async def kept(self, session_id: str, stream: str, after: str) -> list[Event]:
        """Return the stored events of a stream that come after the id `after`, without waiting for more. Raises
        `UnknownEvent` if the id is not of this session."""
