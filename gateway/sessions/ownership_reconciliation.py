"""Check that the store names this replica as owner of its live sessions: each session once per lease time, and all
when a connection to the store has opened.

A store may fail over to a copy that lacks the last claims. Then a session's record names an earlier owner, and no
replica is notified. The last owner keeps processes that no request reaches, and the earlier owner may still have
processes from before the claim.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.membership import BEAT_S
from gateway.cluster.ownership import Cluster
from session_store import Directory, StoreUnavailable
from session_store.ports.replica_directory import count_of
from session_store.session import redact

logger = logging.getLogger(__name__)

_PARTS: Final = 3
"""The live sessions are compared in this many parts, one at each heartbeat. So all are compared within one lease time,
even if the store's client needs some of that time to follow a failover."""

_AGAIN_S: Final = 0.5
"""Minimum seconds between two comparisons of all sessions. Each new connection to the store causes one, and a store
that refuses writes causes many connections."""


class Reconciliation:
    """Ends sessions that are live on this replica, but whose stored record names another owner, or another claim
    (epoch) than this replica's."""

    def __init__(self, cluster: Cluster, directory: Directory, live: LiveSessions) -> None:
        self._cluster = cluster
        self._directory = directory
        self._live = live
        self._part = 0

    async def keep_comparing(self) -> None:
        """Compare one part of the sessions with the store at each heartbeat, until cancelled. Compare all sessions when
        a connection to the store has opened. A slow comparison does not delay later ones."""
        clock, connected = asyncio.get_running_loop().time, self._cluster.store_connected
        due, soonest = clock() + BEAT_S, 0.0
        while True:
            try:
                async with asyncio.timeout_at(due):
                    await connected.wait()
                    await asyncio.sleep(soonest - clock())
            except TimeoutError:  # the beat. A connection before it does not put it off
                due = max(due + BEAT_S, clock())
            is_part = self._cluster.lease.is_compared
            with contextlib.suppress(StoreUnavailable):
                await (self.compare() if is_part else self.compare_all())
            if not is_part:
                soonest = clock() + _AGAIN_S

    async def compare_all(self) -> None:
        """Compare all sessions with the store, so that this replica trusts its lease again. Log how many the store does
        not know, because it may have come back without its data. Raises as `compare`."""
        self._cluster.store_connected.clear()
        has, unknown = len(self._live.ids()), 0
        for _ in range(_PARTS):
            unknown += await self.compare()
        if unknown:
            text = (
                "the store does not know %d of the %d sessions of this replica: they are lost if it has lost its data"
            )
            logger.error(text, unknown, has)
        if not self._cluster.store_connected.is_set():
            self._cluster.lease.compared()

    async def compare(self) -> int:
        """Compare the next part of the sessions with the store, and end those that this replica has lost. Return how
        many of them the store does not know.

        Raises:
            StoreUnavailable: the next call compares the same part again. The store may be failing over, and sessions
                whose claims it loses must not wait for another round.
        """
        compared = {
            session_id: live
            for session_id in self._live.ids()
            if hash(session_id) % _PARTS == self._part and (live := self._live.get(session_id)) is not None
        }
        epochs = {session_id: live.session.epoch for session_id, live in compared.items()}
        owners = await self._directory.owners([*compared])
        lost = [
            (live, found)
            for (session_id, live), found in zip(compared.items(), owners, strict=True)
            if found is not None and self._is_lost(live, epochs[session_id], found)
        ]
        # First, and again if it fails: once a session has ended here, no replica would tell the earlier owner.
        await self._tell(lost)
        for live, found in lost:
            if self._is_lost(live, epochs[live.session.id], found):
                logger.warning(
                    "the store names another owner of a session than this replica",
                    extra={"session": redact(live.session.id)},
                )
                self._cluster.lose(live.session.id)
        self._part = (self._part + 1) % _PARTS
        return sum(
            found is None and self._live.get(session_id) is live
            for (session_id, live), found in zip(compared.items(), owners, strict=True)
        )

    def _is_lost(self, live: LiveSession, epoch: int, found: tuple[str, int]) -> bool:
        """Return True if this replica still serves the session under the claim `epoch`, but the store names another
        owner or another claim. `found` is the owner and the epoch in the store."""
        session = live.session
        return (
            found != (self._cluster.replica, epoch)
            and session.epoch == epoch
            and self._live.get(session.id) is live
            and not self._cluster.has_released(session.id)
        )

    async def _tell(self, lost: Sequence[tuple[LiveSession, tuple[str, int]]]) -> None:
        """Notify the earlier owners of lost sessions that this replica had claimed the sessions, and that the store has
        lost these claims in a failover. An earlier owner that missed a claim still has processes. `lost` has each
        session with the owner and the epoch that the store names now."""
        earlier: defaultdict[str, list[str]] = defaultdict(list)
        for live, (owner, epoch) in lost:
            if owner and owner != self._cluster.replica and count_of(epoch) < count_of(live.session.epoch):
                earlier[owner].append(live.session.id)
        for owner, session_ids in earlier.items():
            await self._cluster.tell_forgotten(owner, session_ids)
