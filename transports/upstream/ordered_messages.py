"""Send notifications and responses over HTTP one after another: each takes a request, and they keep their order."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger(__name__)

SEND_S: Final = 30.0
"""Seconds that one of them may take, as long as a server may take to wake up. Later requests wait for it."""

BYTES_PER_S: Final = 128 << 10
"""The speed at which a large one may be sent: it may take so many more seconds."""

MOST_WAITING_BYTES: Final = 4 << 20
"""Bytes of those that wait, beyond which no more are taken. Each counts `_OWN_BYTES` more than it has."""

_OWN_BYTES: Final = 1 << 10


class OrderedMessages:
    """Send messages to the server `name` in their order. `run` runs the work of one in a task, under a key. A server
    that holds one for longer than `SEND_S` gets none of those that wait."""

    __slots__ = ("_bytes", "_drops", "_last", "_name", "_run", "_unsent")

    def __init__(self, name: str, run: Callable[[object, Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._name = name
        self._run = run
        self._unsent: dict[asyncio.Task[None], None] = {}
        self._last: asyncio.Task[None] | None = None
        self._bytes = 0
        self._drops = False  # whether the last message was dropped: a client that sends many makes one line of the log

    def add(self, size: int, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Send a message of `size` bytes, with `send`, once those before it are sent."""
        has_dropped, self._drops = self._drops, self._bytes > MOST_WAITING_BYTES
        if self._drops:
            if not has_dropped:
                logger.warning("server %s is too slow: messages to it are dropped while too many wait", self._name)
            return
        self._bytes += size + _OWN_BYTES
        self._last = task = self._run(object(), self._send(size, send, self._last))
        self._unsent[task] = None

        def end(task: asyncio.Task[None]) -> None:
            self._unsent.pop(task)
            self._bytes -= size + _OWN_BYTES

        task.add_done_callback(end)

    async def sent(self) -> None:
        """Wait until no message that was added before this call waits or is in flight."""
        await _end_of(self._last)

    async def _send(
        self, size: int, send: Callable[[], Coroutine[Any, Any, None]], before: asyncio.Task[None] | None
    ) -> None:
        await _end_of(before)
        try:
            async with asyncio.timeout(SEND_S + size / BYTES_PER_S):
                await send()
        except TimeoutError:
            waiting = [task for task in self._unsent if task is not asyncio.current_task()]
            text = "server %s did not take a message within %g s; messages that waited for it and are dropped: %d"
            logger.warning(text, self._name, SEND_S, len(waiting))
            for task in waiting:
                task.cancel()


async def _end_of(task: asyncio.Task[None] | None) -> None:
    if task is not None and not task.done():
        await asyncio.wait([task])
