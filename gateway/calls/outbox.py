"""Messages for the standalone stream of one session, on their way into the event log."""

import asyncio
from collections import deque
from typing import Final

from gateway.calls.streams import STANDALONE
from session_store import EventStreams, StoreUnavailable
from transports.reply_queue import MAX_QUEUED_BYTES
from transports.tasks import Tasks

__all__ = ["MAX_MESSAGES", "Outbox"]

MAX_MESSAGES: Final = 256
"""Messages that may wait while the store does not answer."""

_RETRY_S: Final = 0.5
"""The pause after the store has failed."""


class Outbox:
    """Appends messages to the log one after the other, and waits while the store is unavailable.

    At most `MAX_MESSAGES` messages of `MAX_QUEUED_BYTES` bytes wait.
    """

    __slots__ = ("_bytes", "_events", "_is_stopped", "_session_id", "_tasks", "_waiting")

    def __init__(self, session_id: str, events: EventStreams) -> None:
        self._session_id = session_id
        self._events = events
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_stopped = False
        self._tasks = Tasks("standalone stream")

    def put(self, frame: bytes) -> bool:
        """Add a message. False if too much waits already, and the message is dropped."""
        is_full = self._waiting and self._bytes + len(frame) > MAX_QUEUED_BYTES
        if self._is_stopped or is_full or len(self._waiting) >= MAX_MESSAGES:
            return False
        self._waiting.append(frame)
        self._bytes += len(frame)
        self._tasks.start(STANDALONE, self._flush)
        return True

    async def _flush(self) -> None:
        while self._waiting and not self._is_stopped:
            try:
                await self._events.append(self._session_id, STANDALONE, self._waiting[0])
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                self._bytes -= len(self._waiting.popleft())

    def stop(self) -> None:
        """Begin no further append. Messages that wait are dropped."""
        self._is_stopped = True

    async def close(self) -> None:
        """Stop, and wait for the append that is under way. Idempotent."""
        self.stop()
        await self._tasks.close(wait_s=_RETRY_S)
