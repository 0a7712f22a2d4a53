"""Store the events of the sessions that this replica serves, so that clients can fetch missed ones later.

The client gets an event at once, the store soon after. A reader of a session's events first waits until the store has
all events recorded before. A process that dies loses at most its last batch of events, which clients may have received.
`UnwrittenEvent` says that an event id is from such a batch. docs/adr/0030-events-behind-the-answer.md

Each part of the store, such as a node of a cluster, has its own batches. While one batch is written, new events gather
for the next. Sessions whose last write has failed are retried in separate batches. So a part that is down, or a session
that the store refuses, does not delay the others."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from typing import Final

from session_store import Entry, Event, EventLog, Reserved, StoreUnavailable, id_of_event
from session_store.ports.events import MAX_LOG_BYTES, MAX_LOG_EVENTS
from transports.background_tasks import Tasks

MAX_WAITING_BYTES: Final = 32 << 20
"""Maximum bytes of events that wait while the store does not answer. Later events get no id and cannot be replayed."""

_RESERVED: Final = 1 << 16
"""How many event numbers are reserved in the store at once for a session."""

_LEFT: Final = StoreUnavailable("another process serves the session")

_ENTRY_BYTES: Final = 256
"""Bytes that are counted for an event in addition to its message and its request."""
_BATCH_BYTES: Final = 4 << 20
"""Maximum bytes of a batch, so that the store does not get the whole backlog in one write after an outage."""
_PAUSE_S: Final = 0.005
"""Seconds between two batches if no caller waits. Events of calls in quick succession then share a batch, which costs
the store less."""
_RETRY_S: Final = 0.5
"""Seconds until a failed write of a session is retried."""
_SESSION_BYTES: Final = MAX_LOG_BYTES + MAX_LOG_EVENTS * _ENTRY_BYTES
_STOPS: Final = StoreUnavailable("the gateway stops")

logger = logging.getLogger(__name__)

LoggedFrame = tuple[bytes | None, bool]
"""The bytes of a frame (None if the frame cannot be stored), and True if it is the last of its stream."""


class _Backlog:
    """The events of one session that are not in the store yet: those of the batch that is being written, and those for
    the next batch (due)."""

    __slots__ = ("_due_bytes", "_waiting", "_writing_bytes", "due", "is_given_up", "queue", "writing")

    def __init__(self) -> None:
        self.due: list[Entry] = []
        self.writing: Sequence[Entry] = ()
        self.is_given_up = False  # no retry of the batch under way
        self.queue: _Queue | None = None
        self._due_bytes = self._writing_bytes = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for each caller, the last number that it needs

    @property
    def size(self) -> int:
        return self._due_bytes + self._writing_bytes

    def add(self, entries: Sequence[Entry]) -> int:
        """Add events for the next batch. Return by how many bytes the backlog has grown."""
        before = self._due_bytes
        self._due_bytes += sum(map(_size, entries))
        self.due += entries
        self._trim()
        return self._due_bytes - before

    def _trim(self) -> None:
        """Drop the oldest events beyond the limits of a session's log: the store would delete them anyway."""
        while len(self.due) > MAX_LOG_EVENTS or (self._due_bytes > _SESSION_BYTES and len(self.due) > 1):
            self._due_bytes -= _size(self.due.pop(0))

    def begin(self) -> None:
        """Move all due events into the batch that is written now."""
        self.writing, self._writing_bytes = self.due, self._due_bytes
        self.due, self._due_bytes = [], 0

    def end(self, failure: Exception | None) -> None:
        """Complete the write that `begin` has begun. `failure` is the error of the write; None if it succeeded. If the
        store was unavailable, put the events into the next batch, unless `give_up` was called. Writing an event twice
        does no harm."""
        written, size = self.writing, self._writing_bytes
        self.writing, self._writing_bytes = (), 0
        if failure is None:
            self._tell_waiting()
        else:
            if isinstance(failure, StoreUnavailable) and not self.is_given_up:
                self.due, self._due_bytes = [*written, *self.due], self._due_bytes + size
                self._trim()
            self.fail(failure)
        self.is_given_up = False

    def withdraw(self, event_id: str) -> None:
        """Remove an event that is not written yet. Do nothing if its write has begun."""
        for entry in self.due:
            if id_of_event(entry.nonce, entry.number) == event_id:
                self.due.remove(entry)
                self._due_bytes -= _size(entry)
                self._tell_waiting()
                return

    def give_up(self, failure: StoreUnavailable | None) -> None:
        """Drop the events that are not being written, and do not retry the write in progress. Callers that wait in
        `stored` get the error `failure`. If that is None, they just continue, because nobody needs the events any
        more."""
        self.due, self._due_bytes = [], 0
        self.is_given_up = True
        if failure is None:
            self._tell_waiting()
        else:
            self.fail(failure)

    async def stored(self) -> None:
        """Wait until the store has the events that were added before this call. Raises `StoreUnavailable`."""
        unwritten = self.due or self.writing
        if unwritten:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((unwritten[-1].number, written))
            await written

    def _tell_waiting(self) -> None:
        """Wake the callers of `stored` whose events are all written."""
        unwritten = self.writing or self.due
        waiting, self._waiting = self._waiting, []
        for number, written in waiting:
            if unwritten and unwritten[0].number <= number:
                self._waiting.append((number, written))
            elif not written.done():
                written.set_result(None)

    def fail(self, failure: Exception) -> None:
        """Fail all callers of `stored`, because the store may lack their events."""
        waiting, self._waiting = self._waiting, []
        for _, written in waiting:
            if not written.done():
                written.set_exception(StoreUnavailable(str(failure)))


def _size(entry: Entry) -> int:
    return len(entry.frame) + len(entry.request) + _ENTRY_BYTES


class _Queue:
    """The sessions whose unwritten events go to one part of the store, such as a node of a cluster."""

    __slots__ = ("due", "is_retry", "part", "wanted", "writing")

    def __init__(self, part: Hashable, *, is_retry: bool) -> None:
        self.part = part
        self.is_retry = is_retry
        """True for the queue of sessions whose last write has failed."""
        self.due: dict[str, _Backlog] = {}
        self.writing: dict[str, _Backlog] = {}
        self.wanted = asyncio.Event()

    def begin(self) -> dict[str, Sequence[Entry]]:
        """Begin the next batch: move sessions from `due` to `writing`. Return their events by session id."""
        size = 0
        while self.due and size < _BATCH_BYTES:
            session_id = next(iter(self.due))
            self.writing[session_id] = backlog = self.due.pop(session_id)
            backlog.begin()
            size += backlog.size
        return {session_id: backlog.writing for session_id, backlog in self.writing.items()}

    async def pause(self, *, has_failed: bool) -> None:
        """Wait up to `_PAUSE_S` seconds, so that more events join the batch. End the wait at once if a caller waits for
        a write. After a failed retry, always wait `_RETRY_S` seconds."""
        if self.is_retry and has_failed:
            await asyncio.sleep(_RETRY_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_S):
                await self.wanted.wait()


class EventBatches:
    """Write the events of sessions to `log` in batches."""

    def __init__(self, log: EventLog) -> None:
        self.size = 0
        """The bytes of all events that are not written yet."""
        self._log = log
        self._backlogs: dict[str, _Backlog] = {}
        self._queues: dict[tuple[Hashable, bool], _Queue] = {}
        self._tasks = Tasks("event log")

    def add(self, session_id: str, entries: Sequence[Entry]) -> None:
        """Queue events of a session for writing. Their numbers must be above those of all events added before."""
        backlog = self._backlogs.get(session_id)
        if backlog is None:
            backlog = self._backlogs[session_id] = _Backlog()
        self.size += backlog.add(entries)
        if backlog.queue is None:
            self._enqueue(session_id, backlog, is_retry=False)
        else:  # never in two queues: its events must be written in order
            backlog.queue.due[session_id] = backlog

    async def settle(self, session_id: str) -> None:
        """Wait until the store has the session's events that were added before this call. Raises `StoreUnavailable`."""
        backlog = self._backlogs.get(session_id)
        if backlog is not None:
            if backlog.due and backlog.queue is not None:
                backlog.queue.wanted.set()
            await backlog.stored()

    def withdraw(self, session_id: str, event_id: str) -> None:
        """Remove an event that is not written yet. Do nothing if its write has begun."""
        backlog = self._backlogs.get(session_id)
        if backlog is not None:
            before = backlog.size
            backlog.withdraw(event_id)
            self.size += backlog.size - before
            self._leave(session_id, backlog)

    def give_up(self, session_id: str, failure: StoreUnavailable | None = None) -> None:
        """Drop the events of a session that are not being written, and do not retry its write in progress. Callers that
        wait in `settle` get the error `failure`. If that is None, they just continue, because nobody needs the events
        any more."""
        backlog = self._backlogs.get(session_id)
        if backlog is not None:
            before = backlog.size
            backlog.give_up(failure)
            self.size += backlog.size - before
            self._leave(session_id, backlog)

    def _leave(self, session_id: str, backlog: _Backlog) -> None:
        """Forget a session after events of it were dropped, if it has no more events to write."""
        if backlog.due or backlog.queue is None:
            return
        backlog.queue.due.pop(session_id, None)
        if not backlog.writing:
            del self._backlogs[session_id]

    # -- writing

    def _enqueue(self, session_id: str, backlog: _Backlog, *, is_retry: bool) -> None:
        key = self._log.part_of(session_id), is_retry
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key[0], is_retry=is_retry)
            self._tasks.spawn(self._write(queue))
        queue.due[session_id] = backlog
        backlog.queue = queue

    async def _write(self, queue: _Queue) -> None:
        """Write the batches of a queue, one after the other, until it has no more events."""
        try:
            if queue.is_retry:
                await asyncio.sleep(_RETRY_S)
            while queue.due:
                queue.wanted.clear()
                await queue.pause(has_failed=await self._write_batch(queue))
        finally:
            del self._queues[queue.part, queue.is_retry]
            for session_id, backlog in (queue.writing | queue.due).items():  # left over if this task was cancelled
                self.size -= backlog.size
                del self._backlogs[session_id]
                backlog.fail(_STOPS)

    async def _write_batch(self, queue: _Queue) -> bool:
        """Write the next batch of a queue. Return True if the events of a session in it could not be written."""
        failures = await self._failures(queue.begin())
        batch, queue.writing = queue.writing, {}
        for session_id, backlog in batch.items():
            self._end(session_id, backlog, failures.get(session_id))
        if queue.is_retry and len(failures) == len(batch):  # the store is still away: no caller waits for another retry
            for backlog in queue.due.values():
                backlog.fail(next(iter(failures.values())))
        return bool(failures)

    def _end(self, session_id: str, backlog: _Backlog, failure: Exception | None) -> None:
        """Complete the write of one session's events. `failure` is the error of the write, or None. Queue the events
        again if the store was unavailable; drop them after any other error."""
        if failure is not None and not isinstance(failure, StoreUnavailable):
            logger.error("event log: %d events of a session are given up: %r", len(backlog.writing), failure)
        assert backlog.queue is not None
        backlog.queue.due.pop(session_id, None)
        backlog.queue = None
        before = backlog.size
        backlog.end(failure)
        self.size += backlog.size - before
        if backlog.due:
            self._enqueue(session_id, backlog, is_retry=isinstance(failure, StoreUnavailable))
        else:
            del self._backlogs[session_id]

    async def _failures(self, entries: Mapping[str, Sequence[Entry]]) -> Mapping[str, Exception]:
        """Write the events `entries`, by session id. Return, by session id, the error of each session whose events were
        not all written. Some of its events may be stored."""
        try:
            return await self._log.write(entries)
        except StoreUnavailable as error:
            return dict.fromkeys(entries, error)
        except Exception:
            logger.exception("event log: a batch cannot be written; each of its sessions is written by itself")
        failures: dict[str, Exception] = {}
        left = dict(entries)
        while left:
            session_id = next(iter(left))
            try:
                failures.update(await self._log.write({session_id: left[session_id]}))
            except StoreUnavailable as error:
                return failures | dict.fromkeys(left, error)
            except Exception as error:  # each retry would raise it again
                failures[session_id] = error
            del left[session_id]
        return failures


class _Numbers:
    """The event numbers that are reserved in the store for one session, and that no event has yet."""

    __slots__ = ("end", "epoch", "nonce", "number")

    def __init__(self) -> None:
        self.epoch = 0  # of the reservation
        self.nonce = ""
        self.number = self.end = 0

    def has(self, count: int, epoch: int | None) -> bool:
        """Return True if `count` numbers are left that were reserved in the ownership epoch `epoch`. If that is None,
        because the session moves to another process, numbers of any epoch count."""
        return self.end - self.number >= count and (epoch is None or epoch == self.epoch)

    def renew(self, reserved: Reserved, count: int, epoch: int) -> None:
        self.epoch = epoch
        self.nonce, self.number = reserved
        self.end = self.number + count

    def take(self) -> int:
        """Return the next unused number, and mark it as used."""
        number = self.number
        self.number = number + 1
        return number


class EventWriter:
    """Record the messages of sessions' event streams, so that clients can fetch what they missed: give each message its
    event id at once, and write it to `log` (`session_store.ports.events.EventStreams`) soon after.

    `epoch_of` returns the ownership epoch in which this process serves a session; None if this process does not serve
    it. The methods `stream_of` and `unfinished` first wait until the store has the session's events."""

    def __init__(self, log: EventLog, epoch_of: Callable[[str], int | None]) -> None:
        self._log = log
        self._epoch_of = epoch_of
        self._numbers: dict[str, _Numbers] = {}
        self._batches = EventBatches(log)
        self._ending = Tasks("ends of streams")

    # -- recording

    async def record(
        self, session_id: str, stream: str, frames: Sequence[LoggedFrame], request: bytes = b""
    ) -> list[str | None]:
        """Record events of a stream, to be written to the store soon. Return their ids; an id is None if its event
        cannot be stored. `request` is stored with the first event (`Entry`). Reserve event numbers first if that is
        needed."""
        await self.make_ready(session_id, len(frames))
        return self.record_now(session_id, stream, frames, request)

    def record_now(
        self, session_id: str, stream: str, frames: Sequence[LoggedFrame], request: bytes = b""
    ) -> list[str | None]:
        """Record events without waiting, and return their ids. All ids are None, and no event is stored, if
        `make_ready` has not reserved enough numbers before."""
        ids = self.record_at_hand(session_id, stream, frames, request)
        return [None] * len(frames) if ids is None else ids

    def record_at_hand(
        self, session_id: str, stream: str, frames: Sequence[LoggedFrame], request: bytes = b""
    ) -> list[str | None] | None:
        """Record events without waiting, and return their ids. Do nothing and return None if `make_ready` has to
        reserve numbers first. All ids are None if it could reserve none, because this process does not serve the
        session."""
        numbers, epoch = self._numbers.get(session_id), self._epoch_of(session_id)
        if numbers is not None and numbers.has(len(frames), epoch):
            return self._add(session_id, numbers, stream, frames, request)
        return [None] * len(frames) if epoch is None else None

    def end(self, session_id: str, stream: str) -> None:
        """Record the end of a stream. If no event number is left, reserve some in the background first."""
        if self.is_ready(session_id, 1):
            self.record_now(session_id, stream, [(b"", True)])
        else:
            self._ending.spawn(self.record(session_id, stream, [(b"", True)]))

    def is_ready(self, session_id: str, count: int) -> bool:
        """Return True if `count` events can be recorded without a call of `make_ready`."""
        numbers, epoch = self._numbers.get(session_id), self._epoch_of(session_id)
        return epoch is None if numbers is None else numbers.has(count, epoch) or epoch is None

    async def make_ready(self, session_id: str, count: int) -> None:
        """Reserve event numbers in the store, if fewer than `count` are left for the session."""
        epoch = self._epoch_of(session_id)
        if epoch is None or self.is_ready(session_id, count):
            return
        try:
            reserved = await self._log.reserve(session_id, _RESERVED, epoch)
        except StoreUnavailable:
            return
        if reserved is None or self._epoch_of(session_id) != epoch:  # another process serves the session
            return
        numbers = self._numbers.setdefault(session_id, _Numbers())
        if not numbers.has(count, epoch):  # else another call has reserved some in the meantime
            numbers.renew(reserved, _RESERVED, epoch)

    def _add(
        self, session_id: str, numbers: _Numbers, stream: str, frames: Sequence[LoggedFrame], request: bytes
    ) -> list[str | None]:
        if self._batches.size > MAX_WAITING_BYTES:
            return [None] * len(frames)
        entries: list[Entry] = []
        ids: list[str | None] = []
        for frame, ends in frames:
            if frame is None:
                ids.append(None)
            else:
                number = numbers.take()
                entries.append(Entry(number, stream, frame, ends, numbers.nonce, request))
                request = b""
                ids.append(id_of_event(numbers.nonce, number))
        if entries:
            self._batches.add(session_id, entries)
        return ids

    # -- for callers that need the events in the store

    async def settle(self, session_id: str) -> None:
        """Wait until the store has the session's events recorded before this call. Raises `StoreUnavailable`."""
        await self._batches.settle(session_id)

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Record an event, wait until the store has it, and return its id. Raises `StoreUnavailable`: the event may be
        stored or not."""
        return await self._append(session_id, stream, (frame, False))

    async def finish(self, session_id: str, stream: str) -> None:
        await self._append(session_id, stream, (b"", True))

    async def _append(self, session_id: str, stream: str, event: LoggedFrame) -> str:
        (event_id,) = await self.record(session_id, stream, [event])
        if event_id is None:
            raise StoreUnavailable("too many events wait for the store, or another process serves the session")
        try:
            await self._batches.settle(session_id)
        except StoreUnavailable:
            self._batches.withdraw(session_id, event_id)  # the caller will record it again
            raise
        return event_id

    async def stream_of(self, session_id: str, event_id: str) -> str:
        await self._batches.settle(session_id)
        return await self._log.stream_of(session_id, event_id)

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        await self._batches.settle(session_id)
        return await self._log.unfinished(session_id)

    async def take_request(self, session_id: str, stream: str) -> bytes:
        return await self._log.take_request(session_id, stream)

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        return self._log.follow(session_id, stream, after)

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        await self._log.delivered(session_id, stream, event_id)

    # -- the end of a session here

    async def drop(self, session_id: str) -> None:
        """Delete the streams of a session that has ended. Raises `StoreUnavailable`."""
        self._numbers.pop(session_id, None)
        self._batches.give_up(session_id)
        with contextlib.suppress(StoreUnavailable):
            await self._batches.settle(session_id)  # a write under way would bring the streams back
        await self._log.drop(session_id)

    async def release(self, session_id: str) -> None:
        """Stop recording events of a session, because another process takes it over. Wait until the store has the
        session's events. If the store does not answer, drop them. Later events get no id."""
        await self._ending.settled()
        self._numbers.pop(session_id, None)
        with contextlib.suppress(StoreUnavailable):
            await self._batches.settle(session_id)
        if self._epoch_of(session_id) is None:  # else the session has come back in the meantime
            self._batches.give_up(session_id, _LEFT)
