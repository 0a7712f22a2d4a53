"""Decide whether this process serves requests, and whether load balancers should send any."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from time import monotonic
from typing import Final

from gateway.cluster.ownership import Cluster
from session_store import StoreError
from transports.background_tasks import Tasks


class ServingState:
    """Record whether this process runs and whether it drains. `cluster` is None if only one gateway uses the store."""

    def __init__(self, cluster: Cluster | None) -> None:
        self._cluster = cluster
        self.is_running = False  # from the end of the start to the beginning of the stop
        self.is_draining = False  # while it hands its sessions to other replicas and takes no new ones

    def may_serve(self) -> bool:
        """Return whether this process takes new requests: it runs, other replicas can reach it, and it does not
        drain."""
        is_found = self._cluster is None or self._cluster.is_reachable
        return self.is_running and is_found and not self.is_draining

    def start(self) -> None:
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False

    def start_draining(self) -> None:
        """Begin the drain: from now on, `may_serve` returns False, and no session without an owner is claimed."""
        self.is_draining = True
        if self._cluster is not None:
            self._cluster.start_leaving()

    def stop_draining(self) -> None:
        """End the drain: `may_serve` may return True again, and this process claims sessions without an owner."""
        self.is_draining = False
        if self._cluster is not None:
            self._cluster.stop_leaving()


KNOWN_S: Final = 1.0
"""Seconds for which the result of a write to the store is cached. Load balancers ask every few seconds."""

ANSWER_S: Final = 2.0
"""Seconds after which a store without an answer counts as unavailable. Probes often time out after a few seconds."""


@dataclass(eq=False, repr=False)
class Readiness:
    """Decide whether this process is ready, and cache the store's answer for a second.

    `may_serve` returns whether this process takes requests. `try_write` writes to the store. `can_answer` returns
    whether a server has answered yet; it starts nothing and waits for nothing.

    A ping is not enough: a full or read-only store answers, but no session can be opened or renewed in it. If several
    gateways share the store (`is_shared`), writes fail for all of them at once. If none of them were ready, a load
    balancer would have no gateway left. So a gateway that has written once stays ready: it serves its own sessions
    while its lease is valid, and refuses other sessions.
    """

    may_serve: Callable[[], bool]
    try_write: Callable[[], Awaitable[None]]
    can_answer: Callable[[], bool] = lambda: True
    _: KW_ONLY
    is_shared: bool = False

    def __post_init__(self) -> None:
        self._tasks = Tasks("readiness")
        self._known_until = 0.0
        self._writable = False
        self._has_written = False

    @property
    def store_is_away(self) -> bool:
        """Return True if the store has accepted a write before, but not the last one."""
        return self._has_written and not self._writable

    async def is_ready(self) -> bool:
        """Return whether load balancers should send requests here. Writes to the store at most once a second."""
        if not (self.may_serve() and self.can_answer()):
            return False
        if monotonic() >= self._known_until:
            await self._tasks.share("write", self._write)
        return (self._writable or (self.is_shared and self._has_written)) and self.may_serve()

    async def _write(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.try_write()
            self._writable = self._has_written = True
        except (StoreError, TimeoutError):
            self._writable = False
        finally:
            self._known_until = monotonic() + KNOWN_S
