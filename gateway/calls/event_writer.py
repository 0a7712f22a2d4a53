"""The event log of the sessions that live here. A client gets an event at once, and the store gets it right after.

Events of all sessions are written together: one batch is under way, and what comes meanwhile is the next one. Whoever
reads the log of a session waits for what was recorded of it. A process that dies loses its last batch, a client never
more than that: `UnwrittenEvent` tells that an id is of such a batch. docs/adr/0030-events-behind-the-answer.md
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from session_store import Entry, Event, EventLog, Reserved, StoreUnavailable, id_of_event
from session_store.embedded.events import MAX_LOG_BYTES, MAX_LOG_EVENTS
from transports.soon import Soon, arrived
from transports.tasks import Tasks

__all__ = ["MAX_WAITING_BYTES", "EventWriter", "Kept"]

MAX_WAITING_BYTES: Final = 32 << 20
"""What may wait while the store does not answer. Events beyond get no id: a replay will not contain them."""

_RESERVED: Final = 1 << 16
"""Numbers that are reserved at once for one session."""
_ENTRY_BYTES: Final = 256
"""What an entry takes beside its frame."""
_BATCH_BYTES: Final = 4 << 20
"""What is written at once, so that a store which comes back is not given all that has waited for it."""
_PAUSE_S: Final = 0.005
"""The pause between two batches that nobody waits for: events of calls that follow each other quickly cost the store
less together."""
_RETRY_S: Final = 0.5
"""The pause after the store has failed."""
_SESSION_BYTES: Final = MAX_LOG_BYTES + MAX_LOG_EVENTS * _ENTRY_BYTES

logger = logging.getLogger(__name__)

Kept = tuple[bytes | None, bool]
"""A frame, or None if it cannot be kept, and whether its stream ends with it."""


class _Session:
    """The numbers of one session that are not used yet, and its events that no write has begun with."""

    __slots__ = ("end", "entries", "epoch", "is_dropped", "nonce", "number", "size")

    def __init__(self) -> None:
        self.epoch = 0  # in which the numbers were reserved
        self.nonce = ""
        self.number = self.end = 0
        self.entries: list[Entry] = []
        self.size = 0
        self.is_dropped = False

    def has_numbers(self, count: int, epoch: int | None) -> bool:
        """Whether it has so many of that epoch. None: the session is on its way to another process."""
        return self.end - self.number >= count and (epoch is None or epoch == self.epoch)

    def renumber(self, reserved: Reserved, count: int, epoch: int) -> None:
        self.epoch = epoch
        self.nonce, self.number = reserved
        self.end = self.number + count

    def add(self, stream: str, frame: bytes, *, ends: bool) -> str:
        """Returns the id."""
        number, self.number = self.number, self.number + 1
        self.entries.append(Entry(number, stream, frame, ends, self.nonce))
        self.size += _size(frame)
        return id_of_event(self.nonce, number)

    def take(self) -> tuple[list[Entry], int]:
        """What is to be written now, and its size."""
        taken = self.entries, self.size
        self.entries, self.size = [], 0
        return taken

    def put_back(self, entries: list[Entry], size: int) -> None:
        """Write these again."""
        self.entries, self.size = [*entries, *self.entries], self.size + size

    def trim(self) -> None:
        """Leave out what the log would drop at once, because a session has many events or large ones."""
        while len(self.entries) > MAX_LOG_EVENTS or (self.size > _SESSION_BYTES and len(self.entries) > 1):
            self.size -= _size(self.entries.pop(0).frame)

    def take_back(self, event_id: str) -> None:
        """Write an event no more."""
        for entry in self.entries:
            if id_of_event(self.nonce, entry.number) == event_id:
                self.entries.remove(entry)
                self.size -= _size(entry.frame)
                return

    def drop(self) -> None:
        self.is_dropped = True
        self.take()


def _size(frame: bytes) -> int:
    return len(frame) + _ENTRY_BYTES


def _last(entries: Sequence[Entry]) -> int:
    return entries[-1].number if entries else 0


def _has_until(entries: Sequence[Entry], number: int) -> bool:
    """Whether one of the entries, whose numbers rise, has this number or a lower one."""
    return bool(entries) and entries[0].number <= number


class _Outcome(NamedTuple):
    """How a batch went: why some of it has to be written again, and the sessions whose events were given up."""

    failure: StoreUnavailable | None = None
    lost: frozenset[str] = frozenset()


_STOPS: Final = _Outcome(StoreUnavailable("the gateway stops"))

_Batch = dict[str, tuple[_Session, list[Entry], int]]
"""Each session's events that are written together, and their size."""


class EventWriter:
    """Records events, and writes them to `log`. `epoch_of` gives the epoch in which a session is served here; None: it
    is not served here, or no longer."""

    def __init__(self, log: EventLog, epoch_of: Callable[[str], int | None]) -> None:
        self._log = log
        self._epoch_of = epoch_of
        self._sessions: dict[str, _Session] = {}
        self._due: dict[str, _Session] = {}
        self._writing: Mapping[str, Sequence[Entry]] = {}
        self._round: asyncio.Future[_Outcome] | None = None
        self._wanted = asyncio.Event()
        self._bytes = 0
        self._tasks = Tasks("event log")

    # -- recording

    def record(self, session_id: str, stream: str, frames: Sequence[Kept]) -> Soon[list[str | None]]:
        """The ids of these events, which the store gets soon. None where an event cannot be kept."""
        session, epoch = self._sessions.get(session_id), self._epoch_of(session_id)
        if session is not None and session.has_numbers(len(frames), epoch):
            return self._add(session_id, session, stream, frames)
        if epoch is None:
            return [None] * len(frames)
        return self._record_later(session_id, stream, frames, epoch)

    async def _record_later(self, session_id: str, stream: str, frames: Sequence[Kept], epoch: int) -> list[str | None]:
        """As `record`, for the first events of a session here, and when it has used its numbers."""
        try:
            reserved = await self._log.reserve(session_id, _RESERVED, epoch)
        except StoreUnavailable:
            return [None] * len(frames)
        if reserved is None or self._epoch_of(session_id) != epoch:  # another process serves the session
            return [None] * len(frames)
        session = self._sessions.setdefault(session_id, _Session())
        if not session.has_numbers(len(frames), epoch):  # else another call has reserved some meanwhile
            session.renumber(reserved, _RESERVED, epoch)
        return self._add(session_id, session, stream, frames)

    def _add(self, session_id: str, session: _Session, stream: str, frames: Sequence[Kept]) -> list[str | None]:
        if self._bytes > MAX_WAITING_BYTES:
            return [None] * len(frames)
        before = session.size
        ids = [None if frame is None else session.add(stream, frame, ends=ends) for frame, ends in frames]
        session.trim()
        self._bytes += session.size - before
        if session.entries:
            self._due[session_id] = session
            if self._round is None:
                self._round = asyncio.get_running_loop().create_future()
                self._tasks.spawn(self._write())
        return ids

    # -- writing

    async def _write(self) -> None:
        """Write what is due, until nothing is."""
        outcome = _STOPS
        try:
            while self._due:
                outcome = _STOPS  # what a write ends with that is cancelled
                self._wanted.clear()
                outcome = await self._write_batch()
                self._end_round(outcome)
                self._round = asyncio.get_running_loop().create_future()
                await self._pause(outcome)
        finally:
            self._end_round(outcome)
            self._round = None

    async def _pause(self, outcome: _Outcome) -> None:
        """Let events gather, unless somebody waits for them. A store that is away is not asked more often for that."""
        if outcome.failure is not None:
            await asyncio.sleep(_RETRY_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_S):
                await self._wanted.wait()

    async def _write_batch(self) -> _Outcome:
        """Write some of what is due."""
        batch: _Batch = {}
        size = 0
        while self._due and size < _BATCH_BYTES:
            session_id = next(iter(self._due))
            session = self._due.pop(session_id)
            batch[session_id] = (session, *session.take())
            size += batch[session_id][2]
        self._writing = {session_id: entries for session_id, (_, entries, _) in batch.items()}
        try:
            await self._log.write(self._writing)
        except StoreUnavailable as error:
            for session_id in batch:
                self._put_back(session_id, batch)
            return _Outcome(error)
        except Exception:
            logger.exception("event log: a batch cannot be written; each of its sessions is written by itself")
            return await self._write_each(batch)
        finally:
            self._writing = {}
            self._bytes -= size
        return _Outcome()

    async def _write_each(self, batch: _Batch) -> _Outcome:
        """Write a batch session by session: what cannot be written of one must not cost the others their events."""
        failure: StoreUnavailable | None = None
        lost: set[str] = set()
        for session_id, (session, entries, _) in batch.items():
            if failure is not None:
                self._put_back(session_id, batch)
            elif not session.is_dropped:
                try:
                    await self._log.write({session_id: entries})
                except StoreUnavailable as error:
                    failure = error
                    self._put_back(session_id, batch)
                except Exception as error:  # would be raised by each further try
                    logger.error("event log: %d events of a session are given up: %r", len(entries), error)
                    lost.add(session_id)
        return _Outcome(failure, frozenset(lost))

    def _put_back(self, session_id: str, batch: _Batch) -> None:
        """Let the next batch have these events: a write can be repeated."""
        session, entries, size = batch[session_id]
        if not session.is_dropped:
            before = session.size
            session.put_back(entries, size)
            session.trim()
            self._bytes += session.size - before
            self._due[session_id] = session

    def _end_round(self, outcome: _Outcome) -> None:
        if self._round is not None and not self._round.done():
            self._round.set_result(outcome)

    # -- for those who need the store to have it

    async def settle(self, session_id: str) -> None:
        """Wait until the store has what was recorded of a session before this call. Raises `StoreUnavailable`."""
        last = max(_last(self._writing.get(session_id, ())), _last(self._entries_due(session_id)))
        while (is_due := _has_until(self._entries_due(session_id), last)) or _has_until(
            self._writing.get(session_id, ()), last
        ):
            if is_due:
                self._wanted.set()
            outcome = _STOPS if self._round is None else await asyncio.shield(self._round)
            if session_id in outcome.lost:
                raise StoreUnavailable("the store cannot write events of this session")
            if outcome.failure is not None and _has_until(self._entries_due(session_id), last):
                raise StoreUnavailable(str(outcome.failure))

    def _entries_due(self, session_id: str) -> Sequence[Entry]:
        session = self._due.get(session_id)
        return () if session is None else session.entries

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Store an event, and return its id. Raises `StoreUnavailable`: it may be stored nevertheless."""
        (event_id,) = await arrived(self.record(session_id, stream, [(frame, False)]))
        if event_id is None:
            raise StoreUnavailable("too many events wait for the store, or another process serves the session")
        try:
            await self.settle(session_id)
        except StoreUnavailable:
            self._take_back(session_id, event_id)
            raise
        return event_id

    def _take_back(self, session_id: str, event_id: str) -> None:
        """Write an event no more: whoever has recorded it does that again."""
        session = self._due.get(session_id)
        if session is not None:
            before = session.size
            session.take_back(event_id)
            self._bytes += session.size - before
            if not session.entries:
                del self._due[session_id]

    async def finish(self, session_id: str, stream: str) -> None:
        """Mark a stream as complete. Raises `StoreUnavailable`."""
        await arrived(self.record(session_id, stream, [(b"", True)]))
        await self.settle(session_id)

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """As `EventLog.stream_of`."""
        await self.settle(session_id)
        return await self._log.stream_of(session_id, event_id)

    async def unfinished(self, session_id: str) -> list[str]:
        """As `EventLog.unfinished`."""
        await self.settle(session_id)
        return await self._log.unfinished(session_id)

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        """As `EventLog.follow`. What is not written yet comes as any new event."""
        return self._log.follow(session_id, stream, after)

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """As `EventLog.delivered`."""
        await self._log.delivered(session_id, stream, event_id)

    # -- the end of a session here

    async def drop(self, session_id: str) -> None:
        """Delete the session's streams: it has ended. Raises `StoreUnavailable`."""
        self._forget(session_id)
        with contextlib.suppress(StoreUnavailable):
            await self.settle(session_id)  # a write that has begun would bring them back
        await self._log.drop(session_id)

    async def release(self, session_id: str) -> None:
        """Another process serves the session from now on. Returns when the store has its events, or does not answer:
        then they are given up. What comes later has no id."""
        with contextlib.suppress(StoreUnavailable):
            await self.settle(session_id)
        if self._epoch_of(session_id) is None:  # else the session has come back meanwhile
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._due.pop(session_id, None)
            self._bytes -= session.size
            session.drop()
