"""One run of some work at a time, shared by all who need its result."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["SharedRun"]


class SharedRun:
    """Runs `work` in a task of its own, so that a caller who is cancelled does not end the run of the others."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._running: asyncio.Task[None] | None = None

    async def done(self) -> None:
        """Wait for the current run, or for a new one if there is none. Raises what the run raises."""
        await asyncio.shield(self.start())

    def start(self) -> asyncio.Task[None]:
        """The current run, or a new one if there is none. What it raises is logged nowhere."""
        if self._running is None:
            self._running = asyncio.create_task(self._work())
            self._running.add_done_callback(self._ended)
        return self._running

    def cancel(self) -> None:
        """Cancel the current run, if there is one. Its callers get `CancelledError`."""
        if self._running is not None:
            self._running.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: every caller may have left
