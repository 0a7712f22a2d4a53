"""Renews the lease of this replica, and has the other replicas hold while the store does not answer."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Final

from gateway.cluster.ownership import BEAT, Cluster
from session_store import Bus, StoreUnavailable

__all__ = ["BEAT_S", "Beats"]

BEAT_S: Final = 1.0
_LATE_S: Final = 0.25
"""After how long without an answer of the store the other replicas are asked to hold."""

_AWAY_S: Final = 0.5


class Beats:
    """Renews the lease again and again. `ask_to_hold` asks replicas, whose addresses it is given by name, to take
    nothing from this one for a while; True: all have agreed."""

    def __init__(self, cluster: Cluster, bus: Bus, ask_to_hold: Callable[[Mapping[str, str]], Awaitable[bool]]) -> None:
        self._cluster = cluster
        self._bus = bus
        self._ask_to_hold = ask_to_hold

    async def live(self) -> None:
        """Renew the lease until cancelled. Sessions that others have claimed are closed at once."""
        while True:
            # The store may be away when the gateway starts. A replica without a lease owns nothing for long.
            with contextlib.suppress(StoreUnavailable):
                await self._live()
            await self.renew()
            await asyncio.sleep(_AWAY_S)

    async def _live(self) -> None:
        """As `live`, until the store is away when it is asked to notify."""
        asked = asyncio.Event()
        async with self._bus.subscribed(BEAT + self._cluster.replica, lambda _: asked.set()):
            while True:
                is_away = not await self.renew()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AWAY_S if is_away else BEAT_S):
                        await asked.wait()
                asked.clear()

    async def renew(self) -> bool:
        """Renew the lease. While the store does not answer, have the other replicas hold. False: it has failed."""
        beating = asyncio.ensure_future(self._cluster.beat())
        try:
            while not (await asyncio.wait((beating,), timeout=_LATE_S))[0]:
                await self._have_them_hold()
            await beating
            await self._cluster.log_refusing()
        except StoreUnavailable:
            self._cluster.lease.not_renewed()
            await self._have_them_hold()
            return False
        finally:
            beating.cancel()
        return True

    async def _have_them_hold(self) -> None:
        began, peers = monotonic(), self._cluster.lease.peers
        if peers is not None and all(peers.values()) and await self._ask_to_hold(peers):
            self._cluster.lease.held(began)
