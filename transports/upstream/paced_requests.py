"""Send many requests to a server a few at a time. A subscription to thousands of resources makes one request for
each."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from transports.jsonrpc import RequestId
from transports.upstream_port import LinkEvents

AT_ONCE: Final = 16
"""Maximum number of these requests in flight on one link, because each takes a connection."""

ANSWER_S: Final = 10.0
"""Seconds that a server has to answer one of these requests."""

MOST_WAITING: Final = 1 << 16
"""Maximum number of requests that wait to be sent. Further ones are refused."""


class PacedRequests:
    """Send requests to the server `name` in their order, at most `AT_ONCE` at the same time. If the server does not
    answer one of them within `ANSWER_S`, give up the waiting ones. `events` is told of requests that were not sent or
    not answered. `run` has to start a coroutine as a task under a key: for a request, its id."""

    __slots__ = ("_events", "_name", "_run", "_waiting", "_workers")

    def __init__(
        self, name: str, run: Callable[[object, Coroutine[Any, Any, None]], asyncio.Task[None]], events: LinkEvents
    ) -> None:
        self._name = name
        self._run = run
        self._events = events
        self._waiting: OrderedDict[RequestId, Callable[[], Coroutine[Any, Any, None]]] = OrderedDict()
        self._workers = 0

    def add(self, request_id: RequestId, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Send a request by calling `send`, as soon as fewer than `AT_ONCE` are in flight. If too many requests wait
        already, refuse it."""
        if len(self._waiting) >= MOST_WAITING:
            self._events.refused(request_id, f"more than {MOST_WAITING} requests wait for server {self._name!r}")
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
