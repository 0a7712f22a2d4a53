"""Compares the live sessions of this replica with their owners in the store, each once a lease.

A store may fail over to a copy that has not seen the last claims. Then its record names an earlier owner, and nobody is
told: the last owner keeps processes that no request reaches, and the earlier one may have some of before the claim.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.beats import BEAT_S
from gateway.cluster.ownership import Cluster
from session_store import Directory, StoreUnavailable
from session_store.epochs import count_of
from session_store.session import redact

__all__ = ["Reconciliation"]

logger = logging.getLogger(__name__)

_PARTS: Final = 3
"""Into so many parts the sessions are divided, of which one is compared with each beat: all within a lease, with what a
client of the store takes to follow its failover."""


class Reconciliation:
    """Ends sessions that are live here, and whose record names another owner or another epoch.

    `taken_over` is called with the id of each.
    """

    def __init__(
        self, cluster: Cluster, directory: Directory, live: LiveSessions, taken_over: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._directory = directory
        self._live = live
        self._taken_over = taken_over
        self._part = 0

    async def keep_comparing(self) -> None:
        """Compare a part of the sessions with each beat, until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.compare()
            except StoreUnavailable:
                continue

    async def compare(self) -> None:
        """Compare the next part of the sessions. Raises `StoreUnavailable`."""
        self._part = (self._part + 1) % _PARTS
        compared = {
            session_id: live
            for session_id in self._live.ids()
            if hash(session_id) % _PARTS == self._part and (live := self._live.get(session_id)) is not None
        }
        epochs = {session_id: live.session.epoch for session_id, live in compared.items()}
        for (session_id, live), found in zip(compared.items(), await self._directory.owners([*compared]), strict=True):
            if found is not None and self._is_lost(live, epochs[session_id], found):
                await self._end(live, found)

    def _is_lost(self, live: LiveSession, epoch: int, found: tuple[str, int]) -> bool:
        """Whether a session is not this replica's any more, and was not claimed anew since it was asked for."""
        session = live.session
        return (
            found != (self._cluster.replica, epoch)
            and session.epoch == epoch
            and self._live.get(session.id) is live
            and not self._cluster.has_released(session.id)
        )

    async def _end(self, live: LiveSession, found: tuple[str, int]) -> None:
        (owner, epoch), session = found, live.session
        logger.warning(
            "the store names another owner of a session than this replica", extra={"session": redact(session.id)}
        )
        self._taken_over(session.id)
        # A failover has forgotten this replica's claim, and whether the earlier owner was told of it.
        if owner and owner != self._cluster.replica and count_of(epoch) < count_of(session.epoch):
            await self._cluster.tell_forgotten(owner, session.id)
