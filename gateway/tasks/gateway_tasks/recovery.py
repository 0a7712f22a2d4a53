"""Decide what happens to tasks whose replica is gone. No call is silently executed twice, and each task gets an
outcome.

If the server has created its own task for the call and still has it, that task is followed. Otherwise the call is sent
again, once, if its tool is idempotent and its principal still has the rights for the call. In all other cases the task
fails, because its outcome is unknown.
"""

import functools
import logging
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import msgspec
from cachetools import FIFOCache
from msgspec.structs import replace

from gateway.cluster.ownership import Cluster
from gateway.errors import OUTCOME_UNKNOWN, error_of
from gateway.identity.offline_rights import OfflineRights
from gateway.sessions.session_attaching import SessionAttacher
from gateway.tasks.gateway_tasks.orphaned_tasks import TaskContinuation
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.stored_call import StoredCall
from gateway.tasks.gateway_tasks.task_states import TaskEvent, after, may_run_again
from gateway.tasks.gateway_tasks.task_table import TaskTable, log_fields_of
from session_store import Context, Principal, Session, SessionStore, StoreUnavailable, Task
from session_store.ports.tasks import ids_of
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.jsonrpc import encode

logger = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""Maximum number of tasks that one `sweep` recovers."""

_UNDECIDED: Final = 1_000
"""Maximum number of tasks for which it is remembered that their failed recovery was logged."""

_UNKNOWN: Final = (
    "Outcome unknown: the gateway that ran this task ended without an answer; the call may have taken effect"
)
_UNKNOWN_AGAIN: Final = (
    "Outcome unknown: this task was started again, and the second gateway that ran it ended without an answer as well; "
    "the call may have taken effect once or twice"
)
_NO_SESSION: Final = "Outcome unknown: the session of this task ended without an answer; the call may have taken effect"
_NO_RIGHTS: Final = f"{_UNKNOWN}. It is not started again: {{why}}"
_NOT_FOLLOWED: Final = f"{_UNKNOWN}. The task that its server has made of it is not followed: {{why}}"
_FORGOTTEN: Final = f"{_UNKNOWN}. Its server had made a task of it, and does not know that task any more"


@dataclass(eq=False, repr=False)
class TaskRecovery:
    """Recovers tasks that no replica runs: has each of them followed at its server, sent again, or failed."""

    table: TaskTable
    continuation: TaskContinuation
    _: KW_ONLY
    sessions: SessionStore
    attacher: SessionAttacher
    cluster: Cluster | None
    """None if the store is not shared, so that there can be no other replicas."""
    rights: OfflineRights
    """Decides by the present configuration what the principals of tasks may do, because no client with a credential
    takes part in a recovery."""
    _tasks: Tasks = field(init=False, default_factory=lambda: Tasks("recovery of tasks"))
    _undecided: FIFOCache[str, None] = field(init=False, default_factory=lambda: FIFOCache(_UNDECIDED))
    """The names of tasks whose recovery has failed with an error that was logged already. Used as an ordered set."""

    def is_here(self, session: Session) -> bool:
        """Return True if this replica owns the session, and so has to recover its tasks."""
        return self.cluster is None or session.owner == self.cluster.replica

    async def is_run_by_another(self, session: Session, task: Task) -> bool:
        """Return True if another replica runs the task: according to the store, it owns the session, with the epoch
        that the task has, and its lease is valid."""
        cluster = self.cluster
        if cluster is None or session.owner in ("", cluster.replica) or session.epoch != task.epoch:
            return False
        _, is_leased = await cluster.address_of(session.owner)
        return is_leased

    async def decide(self, task: Task, session: Session | None) -> None:
        """Recover a task that has no outcome and that no replica runs. `session` is the task's session, which this
        replica owns; None if the session has ended. Concurrent callers share one recovery. Raises
        `StoreUnavailable`."""
        if not task.is_over and self.table.get(task.name) is None:
            await self._tasks.share(task.name, lambda: self._decide(task, session))

    async def _decide(self, task: Task, session: Session | None) -> None:
        call = _call_of(task)
        if session is None or call is None:
            await self._give_up(task, _unknown(task, session))
            return
        if task.upstream_id:
            why = self._why_not(self.rights.why_ended, task, session, call)
            if why:
                # The call is not sent again either: that needs more rights.
                await self._give_up(task, _NOT_FOLLOWED.format(why=why))
                return
            lost = functools.partial(self._lost, session=session, call=call)
            if await self.continuation.follow(task, session, call, lost):
                return
        if not may_run_again(task):
            await self._give_up(task, _unknown(task, session))
        elif why := self._why_not(self.rights.why_lost, task, session, call):
            await self._give_up(task, _NO_RIGHTS.format(why=why))
        else:
            await self.continuation.run_again(task, session, call)

    @staticmethod
    def _why_not(why: Callable[[Principal, Context], str], task: Task, session: Session, call: StoredCall) -> str:
        # The server is started with the rights of the session, and the call has its own.
        return why(task.principal, call.context) or why(task.principal, session.context)

    def _lost(self, running: RunningTask, *, session: Session, call: StoredCall) -> None:
        """Continue a running task after its server has lost its own task for the call, which this replica followed.
        Send the call again if that is allowed, else fail the running task."""
        why = self._why_not(self.rights.why_lost, running.task, session, call)
        if not may_run_again(running.task):
            running.give_up(_FORGOTTEN)
        elif why:
            running.give_up(f"{_FORGOTTEN}. It is not started again: {why}")
        else:
            self._tasks.spawn(self.continuation.run_instead(running, call))

    async def _give_up(self, task: Task, reason: str) -> None:
        now = self.table.clock()
        error = encode(error_of(OUTCOME_UNKNOWN, reason, ""))
        failed = replace(
            task,
            status=after(task.status, TaskEvent.FAIL),
            questions=b"",
            answers=b"",
            error=error,
            message=reason,
            updated_at=now,
            ttl_s=now - task.created_at + self.table.settings.outcome_ttl_s(task.kept_s),
        )
        if await self.table.store.replace(failed):
            self.table.report(failed, "unknown")
            logger.warning("the outcome of a task is unknown: its gateway is gone", extra=log_fields_of(task))

    # -- tasks about which no client asks

    async def sweep(self) -> None:
        """Recover up to `AT_ONCE` tasks of replicas that are gone, although no client asks about them. Called
        periodically. Do nothing while this replica may claim no sessions. Raises `StoreUnavailable`."""
        names, cluster = self.table.names, self.cluster
        if cluster is not None and (
            cluster.is_leaving or not cluster.lease.trusts_expired or not await cluster.may_claim()
        ):
            return
        known = await names.replicas()
        if not known:
            return
        alive = {names.replica} if cluster is None else {names.replica, *await cluster.replicas()}
        left = AT_ONCE
        for replica in known:
            if replica in alive and not (cluster is None and replica == names.replica):
                continue
            running = [name for name in await names.of(replica) if self.table.get(name) is None]
            if not running and replica != names.replica:
                await names.forget(replica)
            for name in random.sample(running, min(left, len(running))):
                left -= 1
                # A gateway alone may run it again by now, under the name that its last process had.
                if await self._try_to_settle(name, alive) and (replica != names.replica or not self.table.get(name)):
                    await names.remove(name, replica)

    async def _try_to_settle(self, name: str, alive: set[str]) -> bool:
        """Recover the task `name` with `_settle`, and return the result of that. If it raises an error, such as for a
        record of another version, log the error once and return False, so that the other tasks are still recovered.
        Raises `StoreUnavailable`."""
        try:
            is_settled = await self._settle(name, alive)
        except StoreUnavailable:
            raise
        except Exception:
            if name not in self._undecided:
                logger.exception("a task whose gateway is gone cannot be recovered", extra={"task": redact(name)})
            self._undecided[name] = None
            return False
        self._undecided.pop(name, None)
        return is_settled

    async def _settle(self, name: str, alive: set[str]) -> bool:
        """Recover the task `name` if it has no outcome and its replica is gone. `alive` has the names of the living
        replicas. Return True if nothing is left to do for the task here. Return False if another replica has to recover
        it, or may still run it."""
        session_id, task_id = ids_of(name)
        task = await self.table.store.get(session_id, task_id)
        if task is None or task.is_over or self.table.get(name) is not None:
            return True
        session = await self.sessions.peek(session_id)
        if session is not None and self.cluster is not None and self.cluster.former_owner_may_answer(session.id):
            return False  # a former owner may still run it
        if session is not None and not self.is_here(session):
            if session.owner in alive:
                return session.epoch == task.epoch  # otherwise the session's owner decides, in its own sweep
            if task.upstream_id or may_run_again(task):
                assert self.cluster is not None
                session = await self.cluster.claim_from_owner(session, may_run=True)
                if session is not None and not self.is_here(session):
                    return False
                if session is not None:
                    self.attacher.take_over(session)
        await self.decide(task, session)
        return True

    async def settled(self) -> None:
        """Wait until all recoveries that were begun are complete."""
        await self._tasks.settled()
        await self.continuation.settled()


def _call_of(task: Task) -> StoredCall | None:
    """Return the stored call of a task. None if it was not stored or cannot be read: the call cannot be continued."""
    try:
        return StoredCall.read(task.request) if task.request else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _unknown(task: Task, session: Session | None) -> str:
    """Return the text that says why the outcome of a task is unknown."""
    if task.runs > 1:
        return _UNKNOWN_AGAIN
    return _NO_SESSION if session is None else _UNKNOWN
