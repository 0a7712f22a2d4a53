"""Queue messages to an MCP server over HTTP, where each takes an HTTP request of its own.

Notifications and responses are sent one after the other (`OrderedMessages`), because they could otherwise arrive in
another order. Requests of which there may be thousands, such as a subscription to each resource, are sent a few at a
time (`PacedRequests`).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from transports.jsonrpc import RequestId
from transports.upstream_port import LinkEvents

logger = logging.getLogger(__name__)

_Send = Callable[[], Coroutine[Any, Any, None]]
_Run = Callable[[object, Coroutine[Any, Any, None]], asyncio.Task[None]]

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

    def __init__(self, name: str, run: _Run) -> None:
        self._name = name
        self._run = run
        self._unsent: dict[asyncio.Task[None], None] = {}
        self._last: asyncio.Task[None] | None = None
        self._bytes = 0
        self._drops = False  # whether the last message was dropped: a client that sends many makes one line of the log

    def add(self, size: int, send: _Send) -> None:
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

    async def _send(self, size: int, send: _Send, before: asyncio.Task[None] | None) -> None:
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


AT_ONCE: Final = 16
"""Maximum number of these requests in flight on one link, because each takes a connection."""

ANSWER_S: Final = 10.0
"""Seconds that a server has to answer one of these requests."""

MOST_WAITING_REQUESTS: Final = 1 << 16
"""Maximum number of requests that wait to be sent. Further ones are refused."""


class PacedRequests:
    """Send requests to the server `name` in their order, at most `AT_ONCE` at the same time. If the server does not
    answer one of them within `ANSWER_S`, give up the waiting ones. `events` is told of requests that were not sent or
    not answered. `run` has to start a coroutine as a task under a key: for a request, its id."""

    __slots__ = ("_events", "_name", "_run", "_waiting", "_workers")

    def __init__(self, name: str, run: _Run, events: LinkEvents) -> None:
        self._name = name
        self._run = run
        self._events = events
        self._waiting: OrderedDict[RequestId, _Send] = OrderedDict()
        self._workers = 0

    def add(self, request_id: RequestId, send: _Send) -> None:
        """Send a request by calling `send`, as soon as fewer than `AT_ONCE` are in flight. If too many requests wait
        already, refuse it."""
        if len(self._waiting) >= MOST_WAITING_REQUESTS:
            self._events.refused(
                request_id, f"more than {MOST_WAITING_REQUESTS} requests wait for server {self._name!r}"
            )
            return
        self._waiting[request_id] = send
        if self._workers < AT_ONCE:
            self._workers += 1
            self._run(object(), self._work())

    def drop(self, request_id: object) -> bool:
        """Remove a waiting request. Return False if it does not wait."""
        return self._waiting.pop(request_id, None) is not None  # type: ignore[call-overload]  # anything can be looked up

    async def _work(self) -> None:
        try:
            while self._waiting:
                request_id, send = self._waiting.popitem(last=False)
                sent = self._run(request_id, send())
                if (await asyncio.wait([sent], timeout=ANSWER_S))[1]:
                    sent.cancel()
                    self._give_up(request_id)
        finally:
            self._workers -= 1

    def _give_up(self, request_id: RequestId) -> None:
        late = f"server {self._name!r} did not answer within {ANSWER_S:g} s"
        self._events.unreadable(request_id, late)
        waiting, self._waiting = self._waiting, OrderedDict()
        for other in waiting:
            self._events.refused(other, f"{late}, and gets no further requests of this kind until then")
