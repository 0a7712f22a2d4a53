"""Send notifications and responses to an MCP server over HTTP one after the other. Each message takes an HTTP request
of its own, so they could otherwise arrive in another order."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger(__name__)

SEND_S: Final = 30.0
"""Seconds that sending one message may take: as long as a slow server may need to wake up. Later messages wait for
it."""

BYTES_PER_S: Final = 128 << 10
"""The speed at which a large message has to be sent at least: the time for it is added to `SEND_S`."""

MOST_WAITING_BYTES: Final = 4 << 20
"""Maximum bytes of waiting messages; further ones are dropped. Each message counts `_OWN_BYTES` in addition to its
size."""

_OWN_BYTES: Final = 1 << 10


class OrderedMessages:
    """Send messages to the server `name` in their order. If the server takes longer than `SEND_S` for one message, drop
    all waiting ones. `run` has to start a coroutine, which sends a message, as a task under the given key."""

    __slots__ = ("_bytes", "_drops", "_last", "_name", "_run", "_unsent")

    def __init__(self, name: str, run: Callable[[object, Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._name = name
        self._run = run
        self._unsent: dict[asyncio.Task[None], None] = {}
        self._last: asyncio.Task[None] | None = None
        self._bytes = 0
        self._drops = False  # whether the last message was dropped: a client that sends many makes one line of the log

    def add(self, size: int, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Send a message of `size` bytes by calling `send`, once all messages before it are sent. If too many bytes
        wait already, drop the message."""
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
        """Wait until all messages that were added before this call are sent or dropped."""
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
