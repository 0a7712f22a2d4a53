"""The event log of the sessions that live here. A client gets an event at once, and the store gets it right after.

Whoever reads the log of a session waits for what was recorded of it. A process that dies loses its last batch, a client
never more than that: `UnwrittenEvent` tells that an id is of such a batch. docs/adr/0030-events-behind-the-answer.md
"""

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final

from gateway.calls.event_batches import EventBatches
from session_store import Entry, Event, EventLog, Reserved, StoreUnavailable, id_of_event
from transports.soon import Soon, arrived

__all__ = ["MAX_WAITING_BYTES", "EventWriter", "Kept"]

MAX_WAITING_BYTES: Final = 32 << 20
"""What may wait while the store does not answer. Events beyond get no id: a replay will not contain them."""

_RESERVED: Final = 1 << 16
"""Numbers that are reserved at once for one session."""

_LEFT: Final = StoreUnavailable("another process serves the session")

Kept = tuple[bytes | None, bool]
"""A frame, or None if it cannot be kept, and whether its stream ends with it."""


class _Numbers:
    """The numbers of one session that are not used yet."""

    __slots__ = ("end", "epoch", "nonce", "number")

    def __init__(self) -> None:
        self.epoch = 0  # in which they were reserved
        self.nonce = ""
        self.number = self.end = 0

    def has(self, count: int, epoch: int | None) -> bool:
        """Whether there are so many of that epoch. None: the session is on its way to another process."""
        return self.end - self.number >= count and (epoch is None or epoch == self.epoch)

    def renew(self, reserved: Reserved, count: int, epoch: int) -> None:
        self.epoch = epoch
        self.nonce, self.number = reserved
        self.end = self.number + count

    def take(self) -> int:
        """The next number."""
        number = self.number
        self.number = number + 1
        return number


class EventWriter:
    """Records events, and writes them to `log`. `epoch_of` gives the epoch in which a session is served here; None: it
    is not served here, or no longer."""

    def __init__(self, log: EventLog, epoch_of: Callable[[str], int | None]) -> None:
        self._log = log
        self._epoch_of = epoch_of
        self._numbers: dict[str, _Numbers] = {}
        self._batches = EventBatches(log)

    # -- recording

    def record(
        self, session_id: str, stream: str, frames: Sequence[Kept], request: bytes = b""
    ) -> Soon[list[str | None]]:
        """The ids of these events, which the store gets soon. None where an event cannot be kept. `request` is kept
        with the first of them (`Entry`)."""
        numbers, epoch = self._numbers.get(session_id), self._epoch_of(session_id)
        if numbers is not None and numbers.has(len(frames), epoch):
            return self._add(session_id, numbers, stream, frames, request)
        if epoch is None:
            return [None] * len(frames)
        return self._record_later(session_id, stream, frames, request, epoch)

    async def _record_later(
        self, session_id: str, stream: str, frames: Sequence[Kept], request: bytes, epoch: int
    ) -> list[str | None]:
        """As `record`, for the first events of a session here, and when it has used its numbers."""
        try:
            reserved = await self._log.reserve(session_id, _RESERVED, epoch)
        except StoreUnavailable:
            return [None] * len(frames)
        if reserved is None or self._epoch_of(session_id) != epoch:  # another process serves the session
            return [None] * len(frames)
        numbers = self._numbers.setdefault(session_id, _Numbers())
        if not numbers.has(len(frames), epoch):  # else another call has reserved some meanwhile
            numbers.renew(reserved, _RESERVED, epoch)
        return self._add(session_id, numbers, stream, frames, request)

    def _add(
        self, session_id: str, numbers: _Numbers, stream: str, frames: Sequence[Kept], request: bytes
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

    # -- for those who need the store to have it

    async def settle(self, session_id: str) -> None:
        """Wait until the store has what was recorded of a session before this call. Raises `StoreUnavailable`."""
        await self._batches.settle(session_id)

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Store an event, and return its id. Raises `StoreUnavailable`: it may be stored nevertheless."""
        return await self._append(session_id, stream, (frame, False))

    async def finish(self, session_id: str, stream: str) -> None:
        """Mark a stream as complete. Raises `StoreUnavailable`."""
        await self._append(session_id, stream, (b"", True))

    async def _append(self, session_id: str, stream: str, event: Kept) -> str:
        (event_id,) = await arrived(self.record(session_id, stream, [event]))
        if event_id is None:
            raise StoreUnavailable("too many events wait for the store, or another process serves the session")
        try:
            await self._batches.settle(session_id)
        except StoreUnavailable:
            self._batches.withdraw(session_id, event_id)  # whoever has recorded it does that again
            raise
        return event_id

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """As `EventLog.stream_of`."""
        await self._batches.settle(session_id)
        return await self._log.stream_of(session_id, event_id)

    async def unfinished(self, session_id: str) -> Mapping[str, bool]:
        """As `EventLog.unfinished`."""
        await self._batches.settle(session_id)
        return await self._log.unfinished(session_id)

    async def take_request(self, session_id: str, stream: str) -> bytes:
        """As `EventLog.take_request`."""
        return await self._log.take_request(session_id, stream)

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        """As `EventLog.follow`. What is not written yet comes as any new event."""
        return self._log.follow(session_id, stream, after)

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """As `EventLog.delivered`."""
        await self._log.delivered(session_id, stream, event_id)

    # -- the end of a session here

    async def drop(self, session_id: str) -> None:
        """Delete the session's streams: it has ended. Raises `StoreUnavailable`."""
        self._numbers.pop(session_id, None)
        self._batches.give_up(session_id)
        with contextlib.suppress(StoreUnavailable):
            await self._batches.settle(session_id)  # a write that has begun would bring them back
        await self._log.drop(session_id)

    async def release(self, session_id: str) -> None:
        """Another process serves the session from now on. Returns when the store has its events, or does not answer:
        then they are given up. What comes later has no id."""
        self._numbers.pop(session_id, None)
        with contextlib.suppress(StoreUnavailable):
            await self._batches.settle(session_id)
        if self._epoch_of(session_id) is None:  # else the session has come back meanwhile
            self._batches.give_up(session_id, _LEFT)
