"""Frames on their way to one client, between the upstream that sends them and the wire that writes them."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Final

import msgspec

__all__ = ["MAX_QUEUED_BYTES", "Frame", "ReplyQueue"]


MAX_QUEUED_BYTES: Final = 16 << 20
"""Bytes that may wait for one client that does not read. Beyond this, the exchange is abandoned to save memory."""


class Frame(msgspec.Struct, frozen=True):
    """One message to the client. `error_code` is set on the last one when it is an error."""

    data: bytes
    final: bool = False
    error_code: int | None = None


class ReplyQueue:
    """The frames of one answer. The receiver of the upstream's messages fills the queue, the client's wire reads it."""

    __slots__ = ("_callback", "_closed", "_frames", "_quiet_at", "_size", "_waiter", "abandoned")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._size = 0
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._callback: tuple[Callable[[bool], object], Context] | None = None
        self._quiet_at: float | None = None
        self.abandoned = False

    def push(self, frame: Frame) -> bool:
        """Queue a frame. False if it was dropped: after the final frame, or because the reader is too far behind."""
        if self._closed:
            return False
        if self._size + len(frame.data) > MAX_QUEUED_BYTES and self._frames and not frame.final:
            self.close()
            self.abandoned = True
            return False
        self._frames.append(frame)
        self._size += len(frame.data)
        if frame.final:
            self._closed = True
        self._wake()
        return True

    def rewrite(self, change: Callable[[Frame], Frame | None]) -> None:
        """Replace each queued frame by what `change` returns; None removes it."""
        self._frames = deque(new for frame in self._frames if (new := change(frame)) is not None)
        self._size = sum(len(frame.data) for frame in self._frames)

    def abandon(self) -> None:
        """Record that nobody reads the frames any more."""
        self.abandoned = True

    def close(self) -> None:
        """Accept no more frames. The reader gets the queued ones, then None."""
        self._closed = True
        self._wake()

    @property
    def is_closed(self) -> bool:
        """True if no more frames can be queued."""
        return self._closed

    async def next(self, quiet_at: float | None = None) -> Frame | None:
        """Return the next frame, or None when the stream ended without a final one. One reader only.

        Raises:
            TimeoutError: no frame came before `quiet_at` (monotonic clock). Found by `tick`, so not at once.
        """
        while not self._frames:
            if self._closed:
                return None
            self._quiet_at, self._callback = quiet_at, None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> Frame | None:
        """Return the next frame, if it is there already."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._size -= len(frame.data)
        return frame

    @property
    def whole(self) -> Sequence[Frame] | None:
        """All frames that are still to come, if they are there already. They stay in the queue."""
        return self._frames if self._frames and self._frames[-1].final else None

    @property
    def size(self) -> int:
        """The bytes in the queue."""
        return self._size

    @property
    def first(self) -> Frame | None:
        """The frame that `next` returns next, if it is there already."""
        return self._frames[0] if self._frames else None

    def when_ready(self, callback: Callable[[bool], object], quiet_at: float) -> None:
        """Call back once, when `next` would return something or raise `TimeoutError`. For a reader without a task.

        The callback runs in a turn of the event loop of its own, not inside `push`, with the context of this call. It
        is told whether no frame has come. `next` takes the place of a callback that was not called yet.
        """
        self._quiet_at = quiet_at
        self._waiter = None
        self._callback = callback, copy_context()
        if self._frames or self._closed:
            self._wake()

    def tick(self, now: float) -> None:
        """Raise `TimeoutError` in a reader that has waited until its `quiet_at`.

        The owner of the queue calls this periodically: a timer for each call would cost more than parsing the call.
        """
        if self._quiet_at is None or now < self._quiet_at:
            return
        if self._callback is not None:
            self._call_back(is_quiet=True)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._callback is not None:
            self._call_back(is_quiet=False)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _call_back(self, *, is_quiet: bool) -> None:
        assert self._callback is not None
        (callback, context), self._callback = self._callback, None
        asyncio.get_running_loop().call_soon(callback, is_quiet, context=context)
