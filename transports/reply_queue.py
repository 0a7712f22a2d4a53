"""Queue the messages for one client, between the server that sends them and the connection that writes them."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Final

import msgspec

MAX_QUEUED_BYTES: Final = 16 << 20
"""Maximum bytes that wait for a client that does not read. Beyond this, the client's call is abandoned to save
memory."""


class Frame(msgspec.Struct, frozen=True):
    """One message to the client. `final` marks the last one. `error_code` is set in the last one if it is an error."""

    data: bytes
    final: bool = False
    error_code: int | None = None


class ReplyQueue:
    """Queue the messages (frames) of one answer, between the code that receives the server's messages and the client's
    connection. `size` is in bytes. Once `is_closed`, the queue takes no frame."""

    __slots__ = ("_callback", "_frames", "_quiet_at", "_waiter", "abandoned", "is_closed", "size")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self.size = 0
        self.is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._callback: tuple[Callable[[bool], object], Context] | None = None
        self._quiet_at: float | None = None
        self.abandoned = False

    def push(self, frame: Frame) -> bool:
        """Queue a frame. Return False if it was dropped: the queue is closed, or too many bytes wait for the reader."""
        if self.is_closed:
            return False
        if self.size + len(frame.data) > MAX_QUEUED_BYTES and self._frames and not frame.final:
            self.close()
            self.abandoned = True
            return False
        self._frames.append(frame)
        self.size += len(frame.data)
        if frame.final:
            self.is_closed = True
        self._wake()
        return True

    def rewrite(self, change: Callable[[Frame], Frame | None]) -> None:
        """Replace each queued frame by what `change` returns; None removes it."""
        self._frames = deque(new for frame in self._frames if (new := change(frame)) is not None)
        self.size = sum(len(frame.data) for frame in self._frames)

    def abandon(self) -> None:
        """Record that nobody will read the queued messages."""
        self.abandoned = True

    def close(self) -> None:
        """Accept no more frames. The reader gets the queued frames, then None."""
        self.is_closed = True
        self._wake()

    async def next(self, quiet_at: float | None = None) -> Frame | None:
        """Wait for the next frame and return it; None if the queue was closed without a final frame. One reader only.

        Raises:
            TimeoutError: no frame came before `quiet_at` (monotonic clock). It is raised at the next call of `tick`.
        """
        while not self._frames:
            if self.is_closed:
                return None
            self._quiet_at, self._callback = quiet_at, None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> Frame | None:
        """Remove and return the next frame; None if it has not arrived."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self.size -= len(frame.data)
        return frame

    @property
    def whole(self) -> Sequence[Frame] | None:
        """Return all remaining frames if the final one has arrived; else None. The frames stay in the queue."""
        return self._frames if self._frames and self._frames[-1].final else None

    @property
    def first(self) -> Frame | None:
        """Return the next frame if it has arrived; else None. The frame stays in the queue."""
        return self._frames[0] if self._frames else None

    def when_ready(self, callback: Callable[[bool], object], quiet_at: float) -> None:
        """Call `callback` once, when `next` would return or raise `TimeoutError`. For a reader that is no asyncio task.

        The callback runs in its own turn of the event loop, not inside `push`, in the present context (`contextvars`).
        Its argument is True if no frame came before `quiet_at`. A call of `next` replaces a waiting callback."""
        self._quiet_at = quiet_at
        self._waiter = None
        self._callback = callback, copy_context()
        if self._frames or self.is_closed:
            self._wake()

    def tick(self, now: float) -> None:
        """Make `next` raise `TimeoutError` if its reader has waited until `quiet_at`.

        `CallWatch` calls this periodically: a timer for each call would cost more than parsing the call.
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
