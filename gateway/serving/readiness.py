"""Whether this process takes requests, and whether it says so to those who send them."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from gateway.cluster.ownership import Cluster
from session_store import StoreError
from transports.tasks import Tasks

__all__ = ["Readiness", "ServingState"]


class ServingState:
    """Records that this process runs, and that it drains. `cluster` is None where the gateway has no peers."""

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self.is_running = False  # true from the end of the start to the beginning of the end
        self.is_draining = False  # true while it hands its sessions to other replicas, and takes no new ones

    def may_serve(self) -> bool:
        """True if new requests are welcome."""
        is_found = self._cluster is None or self._cluster.is_reachable
        return self.is_running and is_found and not self.is_draining

    def start(self) -> None:
        """It runs."""
        self.is_running = True

    def stop(self) -> None:
        """It runs no more."""
        self.is_running = False

    def start_draining(self) -> None:
        """No session is claimed from now on."""
        self.is_draining = True
        if self._cluster is not None:
            self._cluster.start_leaving()

    def stop_draining(self) -> None:
        """Sessions that nobody owns may be served here again."""
        self.is_draining = False
        if self._cluster is not None:
            self._cluster.stop_leaving()


KNOWN_S: Final = 1.0
"""How long an answer of the store is remembered. Load balancers ask every few seconds."""

ANSWER_S: Final = 2.0
"""After this time a store that has not answered counts as unavailable. Probes commonly time out after some seconds."""


class Readiness:
    """Readiness, which is remembered for a second: probes are cheap. `may_serve` is true if this process takes requests
    at all. `try_write` writes to the store. `can_answer` is true once a server has answered; it starts nothing and
    waits for nothing.

    A store that answers a ping is not enough. A full store, or a read-only replica, answers but accepts no
    writes: then no session can be opened or kept alive. If replicas share the store (`is_shared`), it is away for all
    of them. So a gateway that has reached it once stays ready: it goes on with its own sessions while its lease is
    valid, and refuses the others, where a load balancer without a gateway has only errors of its own.
    """

    def __init__(
        self,
        may_serve: Callable[[], bool],
        try_write: Callable[[], Awaitable[None]],
        can_answer: Callable[[], bool] = lambda: True,
        *,
        is_shared: bool = False,
    ) -> None:
        self._may_serve = may_serve
        self._try_write = try_write
        self._can_answer = can_answer
        self._is_shared = is_shared
        self._tasks = Tasks("readiness")
        self._known_until = 0.0
        self._writable = False
        self._has_written = False

    @property
    def store_is_away(self) -> bool:
        """True if the store was there before, and accepted no write when it was last asked."""
        return self._has_written and not self._writable

    async def is_ready(self) -> bool:
        """True if requests are to be sent here. Any number of callers cost one write a second."""
        if not (self._may_serve() and self._can_answer()):
            return False
        if monotonic() >= self._known_until:
            await self._tasks.share("write", self._write)
        return (self._writable or (self._is_shared and self._has_written)) and self._may_serve()

    async def _write(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._try_write()
            self._writable = self._has_written = True
        except (StoreError, TimeoutError):
            self._writable = False
        finally:
            self._known_until = monotonic() + KNOWN_S
