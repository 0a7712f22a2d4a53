"""Create sessions, keep them alive, release them to other replicas, and end them. `resolve.py` finds the session of a
request.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.observability.audit import Audit
from gateway.observability.observed_call import Counted
from gateway.policy.principal_quotas import PrincipalQuotas
from session_store import Bus, Session, SessionStore, StoreUnavailable, TaskStore
from transports.background_tasks import Tasks
from transports.inbound_port import Refused
from transports.work_steps import SCANNED_AT_ONCE, SENT_AT_ONCE, let_others_run, slices

logger = logging.getLogger(__name__)

ENDED: Final = "mcp:ended"
"""The bus topic that carries the id of every session that ends, to all replicas."""

CHECKED_AT_ONCE: Final = 256
"""How many live sessions each `sweep` looks up in the store, in case the message that they ended was lost."""


@dataclass(eq=False, repr=False, kw_only=True)
class SessionLifecycle:
    """Creates and ends sessions, and keeps those in use alive."""

    store: SessionStore
    task_records: TaskStore
    bus: Bus
    audit: Audit
    live: LiveSessions
    quotas: PrincipalQuotas
    cluster: Cluster | None
    on_close: Callable[[LiveSession], None]
    """Called with each live session that this replica is about to close, to release resources of the session."""
    _tasks: Tasks = field(init=False, default_factory=lambda: Tasks("session lifecycle"))
    _unchecked: list[str] = field(init=False, default_factory=list)

    async def create(self, session: Session, alias: str | None) -> Session:
        """Count a new session against its principal's quota, store it with this replica as owner, and return its stored
        record. If the alias already names a session that has not ended, return the record of that session instead.

        Raises:
            Refused: 429, the principal has the maximum number of sessions.
        """
        try:
            await self.quotas.hold_session(session)
        except Refused:
            named = None if alias is None else await self.store.resume_alias(alias)
            if named is None:
                raise
            return named
        if self.cluster is not None:
            session = replace(session, owner=self.cluster.replica, epoch=1)
        kept = None
        try:
            kept = await self.store.create(session, alias=alias)
        finally:
            if kept is None or kept.id != session.id:
                await self.quotas.release_session(session)
        return kept

    def created(self, session: Session, reason: str = "") -> None:
        """Record in the audit trail that a session was created. `reason` is why, if that is not obvious."""
        self.audit.record("created", session=session, reason=reason)

    # -- ending

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool:
        """End a session at once, with its processes and child sessions. Return False if it had ended before. `reason`
        is for the audit trail. `calls` is the number of calls answered in the session, if another replica that owns it
        has reported that number."""
        found = await self.store.peek(session_id)
        if (live := self.live.get(session_id)) is not None:
            calls = live.calls
        ended = await self.store.end(session_id)
        for child in () if found is None else found.children:
            await self.end(child, f"its parent session ended: {reason}")
        if ended:
            if found is None:
                self.audit.record("ended", session=session_id, reason=reason)
            else:
                self.audit.ended("ended", found, reason, calls)
                await self.quotas.release_session(found)
        closing = self._close_soon(session_id)
        if ended:
            await self._announce(session_id)
        if closing is not None:
            await asyncio.shield(closing)
        if ended:
            try:
                await self.task_records.drop_session(session_id)
            except StoreUnavailable:
                logger.warning("the tasks of a session that has ended stay in the store until they expire")
        return ended

    def ended_elsewhere(self, data: bytes | None) -> None:
        """Close a session that another replica has ended. `data` is the message of that replica (topic `ENDED`): the
        session id. If it is None, messages may have been lost. Then do nothing: the next rounds of `sweep` find the
        ended sessions."""
        if data is not None:
            self._close_soon(data.decode())

    def taken_over(self, session_id: str) -> None:
        """Close a session that another replica has taken over. The outcome of its calls in flight is unknown."""
        self._close_soon(session_id, over=False, taken_over=True)

    def end_former(self, live: LiveSession) -> None:
        """Close a live session that this replica has kept from a time before another replica owned the session. The
        outcome of its calls in flight is unknown. New calls here get new processes, perhaps before the old ones have
        ended."""
        live.lose()
        self.live.remove(live.session.id)
        self.on_close(live)
        self._tasks.spawn(live.close(over=False, taken_over=True))

    def _close_soon(self, session_id: str, *, over: bool = True, taken_over: bool = False) -> asyncio.Task[None] | None:
        """Remove a session from this replica, and release its resources in the background: a child process that does
        not exit must not delay the next round of `keep_alive`. Return None if the session is not live here. `over` and
        `taken_over`: see `LiveSession.close`."""
        live = self.live.remove(session_id)
        return None if live is None else self._tasks.spawn(self._close(live, over=over, taken_over=taken_over))

    async def _close(self, live: LiveSession, *, over: bool, taken_over: bool) -> None:
        self.on_close(live)
        await live.close(over=over, taken_over=taken_over)

    async def _announce(self, session_id: str) -> None:
        try:
            await self.bus.publish(ENDED, session_id.encode())
        except StoreUnavailable:
            logger.warning("other replicas were not notified that a session ended; each closes it at its next sweep")

    # -- while sessions live

    async def sweep(self) -> None:
        """Keep the sessions in use alive. Close the sessions that have expired, and those that another replica has
        ended."""
        await self.keep_alive()
        for gone in await self.store.sweep():
            live = self.live.get(gone.session_id)
            if live is None:
                self.audit.record(gone.reason, session=gone.session_id)
            else:
                self.audit.ended(gone.reason, live.session, "", live.calls)
                await self.quotas.release_session(live.session)
            self._close_soon(gone.session_id)
            await self._announce(gone.session_id)
        if not self._unchecked:
            self._unchecked = self.live.ids()
        checked, self._unchecked = self._unchecked[:CHECKED_AT_ONCE], self._unchecked[CHECKED_AT_ONCE:]
        for some in slices(checked, SENT_AT_ONCE):
            for session_id in await self.store.gone(some):
                self._close_soon(session_id)
        await self.audit.flush()

    async def keep_alive(self) -> None:
        """Restart the idle time, in the store, of every session that was in use since the last round. The idle time
        counts from the end of the session's last exchange (call in flight)."""
        for scanned in slices(list(self.live), SCANNED_AT_ONCE):
            used = [live for live in scanned if live.take_use()]
            written = 0
            try:
                for some in slices(used, SENT_AT_ONCE):
                    await asyncio.gather(*(self.store.touch(live.session.id) for live in some))
                    written += len(some)
            finally:
                for live in used[written:]:  # the store does not answer
                    live.keep_use()
            await let_others_run()

    # -- leaving

    async def release_idle(self) -> bool:
        """Release the sessions that are idle and can move, so that other replicas can serve them. Return True if no
        live session is left on this replica. Called repeatedly while this replica drains.

        Raises:
            StoreUnavailable: the store does not answer, so no other replica could claim a released session.
        """
        assert self.cluster is not None
        if any(map(_can_move, self.live)):
            await self.cluster.beat()
        idle = [*filter(_can_move, self.live)]
        for live in idle:
            # No await in this loop: a request that arrives now finds the session released.
            self.live.hand_over(live)
            self.on_close(live)
            self.cluster.mark_released(live.session)
        # The next owner may start its processes before the old ones have ended: the old ones get no calls any more.
        await asyncio.gather(*(self._leave(live) for live in idle))
        await asyncio.gather(*(live.flush_events() for live in idle))
        await asyncio.gather(*(self.cluster.release(live.session) for live in idle))
        for live in idle:
            self._tasks.spawn(live.close(over=False))
        return not any(True for _ in self.live)

    async def _leave(self, live: LiveSession) -> None:
        """Store a session's last use and its counts of calls, because this replica is about to release it."""
        if live.take_use():
            await self.store.touch(live.session.id)
        counted = Counted(live.calls, live.failed, live.failures)
        if counted != Counted.of(live.session.counted):
            await self.store.update(live.session.id, counted=counted.text())

    def close_all(self) -> None:
        """Begin to close all sessions of this replica, which other replicas or a later process continue."""
        for session_id in self.live.ids():
            self._close_soon(session_id, over=False)

    async def settled(self) -> None:
        """Wait until the sessions that are now being closed are closed."""
        await self._tasks.settled()


def _can_move(live: LiveSession) -> bool:
    """Return True if nothing of the session is lost when another replica serves it from now on."""
    return live.is_movable and not (live.exchanges or live.has_suspended)
