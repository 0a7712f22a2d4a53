"""Keep event streams (`EventLog`) in the memory of this process, with bounds for each session."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from session_store.ports.errors import UnknownEvent, UnwrittenEvent
from session_store.ports.events import MAX_LOG_BYTES, MAX_LOG_EVENTS, Entry, Event, Reserved, id_of_event, last_after

REQUESTS_PART: Final = 4
"""Divisor of a session's limit for bytes of events: its stored requests may use this part of the limit, a quarter."""


def sequence_of(nonce: str, event_id: str) -> int:
    """Return the number in an event id. `nonce`: the nonce of the session's log, with which ids in this log begin.
    Raises `UnknownEvent` if the id begins with another one."""
    own, _, number = event_id.partition("-")
    if own != nonce or not (number.isascii() and number.isdigit() and len(number) < 17):
        raise UnknownEvent(event_id)
    return int(number)


@dataclass(slots=True)
class _Log:
    """The event log of one session, with all its streams. Its event ids contain its nonce, so ids of other sessions are
    not found."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(4))
    last: int = 0
    """The highest number that an event has, or that is reserved for one."""
    size: int = 0
    """The bytes of the frames in `events`."""
    events: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    """Number, stream and frame of each event, oldest first."""
    counts: dict[str, int] = field(default_factory=dict)  # number of events, by stream
    finished: set[str] = field(default_factory=set)
    """The streams that have ended."""
    delivered: dict[str, int] = field(default_factory=dict)
    """The number of the last event that a client received, by stream."""
    requests: dict[str, bytes] = field(default_factory=dict)  # of calls, by stream
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something has changed; then replaced by a new one."""
    dropped: bool = False
    """True if the log was deleted, so that its followers end."""

    def add(self, number: int, stream: str, frame: bytes, *, max_events: int, max_bytes: int) -> None:
        """Store the frame of an event of `stream` under `number`. Drop the oldest events of the log that are beyond the
        limits."""
        self.events.append((number, stream, frame))
        self.size += len(frame)
        self.counts[stream] = self.counts.get(stream, 0) + 1
        while len(self.events) > max_events or (self.size > max_bytes and len(self.events) > 1):
            _, oldest, dropped = self.events.popleft()
            self.size -= len(dropped)
            self.counts[oldest] -= 1
            if not self.counts[oldest]:
                del self.counts[oldest]
                self.finished.discard(oldest)

    def keep(self, stream: str, request: bytes, *, max_bytes: int) -> None:
        """Store the request of a stream, for repeating the call. Do not store it if the requests of the log would
        together have more than `max_bytes`, or if the stream has one already."""
        if sum(map(len, self.requests.values())) + len(request) <= max_bytes:
            self.requests.setdefault(stream, request)

    def end(self, stream: str) -> None:
        """Mark a stream as finished, and delete its request."""
        self.requests.pop(stream, None)
        if stream not in self.counts:  # its events were dropped, so nothing else would remove it
            self.finished.intersection_update(self.counts)
        self.finished.add(stream)

    def wake(self) -> None:
        """Wake the calls of `follow` that wait for news of this log. They then look for new events."""
        self.news.set()
        self.news = asyncio.Event()


class MemoryEventLog:
    """Keep event streams in the memory of this process. `max_events` and `max_bytes` limit the log of each session."""

    def __init__(self, *, max_events: int = MAX_LOG_EVENTS, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._logs: dict[str, _Log] = {}

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        log = self._log(session_id)
        log.last += 1
        log.add(log.last, stream, frame, max_events=self._max_events, max_bytes=self._max_bytes)
        log.wake()
        return id_of_event(log.nonce, log.last)

    async def finish(self, session_id: str, stream: str) -> None:
        log = self._log(session_id)
        log.end(stream)
        log.wake()

    async def reserve(self, session_id: str, count: int, epoch: int = 0) -> Reserved | None:
        log = self._log(session_id)
        last = last_after(log.last, count, epoch)
        if last is None:
            return None
        log.last = last
        return Reserved(log.nonce, last - count + 1)

    async def write(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        for session_id, events in entries.items():
            log = self._log(session_id)
            for number, stream, frame, ends, _, request in events:
                if log.events and number <= log.events[-1][0]:
                    continue
                if frame or not ends:
                    log.add(number, stream, frame, max_events=self._max_events, max_bytes=self._max_bytes)
                if request:
                    log.keep(stream, request, max_bytes=self._max_bytes // REQUESTS_PART)
                if ends:
                    log.end(stream)
            log.wake()
        return {}

    def part_of(self, session_id: str) -> Hashable:
        return None

    async def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        log = self._log(session_id)
        try:
            position = log.delivered.get(stream, 0) if after is None else sequence_of(log.nonce, after)
        except UnknownEvent:
            return  # the log was dropped in the meantime
        while True:
            news = log.news
            for sequence, name, frame in tuple(log.events):
                if sequence > position and name == stream:
                    position = sequence
                    yield Event(id=id_of_event(log.nonce, sequence), frame=frame)
            if news is not log.news:
                continue  # another event came while the reader was busy
            if log.dropped or stream in log.finished:
                return
            await news.wait()

    async def kept(self, session_id: str, stream: str, after: str) -> list[Event]:
        log = self._log(session_id)
        position = sequence_of(log.nonce, after)
        return [
            Event(id=id_of_event(log.nonce, number), frame=frame)
            for number, name, frame in log.events
            if number > position and name == stream
        ]

    async def stream_of(self, session_id: str, event_id: str) -> str:
        log = self._logs.get(session_id)
        if log is not None:
            sequence = sequence_of(log.nonce, event_id)
            for number, stream, _ in log.events:
                if number == sequence:
                    return stream
            if sequence <= log.last and (not log.events or sequence > log.events[0][0]):
                raise UnwrittenEvent(event_id)
        raise UnknownEvent(event_id)

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        log = self._logs.get(session_id)
        if log is None:
            return {}
        return {stream: stream in log.requests for stream in sorted(log.counts.keys() - log.finished)}

    async def take_request(self, session_id: str, stream: str) -> bytes:
        log = self._logs.get(session_id)
        return b"" if log is None else log.requests.pop(stream, b"")

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        log = self._log(session_id)
        log.delivered[stream] = max(log.delivered.get(stream, 0), sequence_of(log.nonce, event_id))

    async def drop(self, session_id: str) -> None:
        log = self._logs.pop(session_id, None)
        if log is not None:
            log.dropped = True  # its followers end
            log.wake()

    async def release(self, session_id: str) -> None:
        """Do nothing: events are stored at once, not buffered."""

    def _log(self, session_id: str) -> _Log:
        return self._logs.setdefault(session_id, _Log())
