"""What clients ask about tasks that the gateway has made.

A task that is over is answered by any replica, from the store alone. What needs the call goes to the replica that runs
it: the owner of the session, or the one that takes the session over from an owner that is gone.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway.cluster.ownership import Cluster
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.policy.rate_limits import RateLimits
from gateway.sessions.resolve import SessionResolver
from gateway.tasks.answers import acknowledgement, task_result
from gateway.tasks.handles import TaskHandle
from gateway.tasks.recovery import TaskRecovery
from gateway.tasks.refusals import UnknownTask, task_is_over
from gateway.tasks.running import RunningTask
from gateway.tasks.table import TaskTable
from gateway.tasks.task_session import found_session
from session_store import Session, SessionStore, StoreUnavailable, Task
from transports.era import Era
from transports.jsonrpc import Object, decode_object
from transports.soon import arrived

__all__ = ["MadeTasks", "MaySee"]

_STORED_S: Final = 10.0
"""How long a request about a task waits until its outcome is stored."""

MaySee = Callable[[Task, Session | None, RequestContext], bool]
"""Whether the credential of a request may use the tool of a task today. The session is that of the task; None if it has
ended."""


class MadeTasks:
    """Answers for the tasks of all sessions. A handle that is not the principal's names an unknown task, and so does
    one whose tool the request's credential may not use."""

    def __init__(
        self,
        table: TaskTable,
        recovery: TaskRecovery,
        *,
        sessions: SessionStore,
        resolver: SessionResolver,
        cluster: Cluster | None,
        rates: RateLimits,
        audit: Audit,
        may_see: MaySee,
    ) -> None:
        self._table = table
        self._recovery = recovery
        self._sessions = sessions
        self._resolver = resolver
        self._cluster = cluster
        self._rates = rates
        self._audit = audit
        self._may_see = may_see

    async def get(self, handle: TaskHandle, text: str, who: RequestContext) -> bytes:
        """The task, as the result of `tasks/get`. `text` is the handle that the client has sent.

        Raises:
            Refused: the task is unknown; 429, its session sends too many requests.
            OwnedByPeer: another replica has to answer.
            StoreUnavailable: the store does not answer.
        """
        return task_result(await self.current(handle, who, counts=True), text)

    async def count(self, session_id: str) -> None:
        """Count a request about tasks of a session, once, however often it looks at them. Whoever asks must be known to
        be the principal of the session: else anybody could use up its rate. Raises `Refused`: 429."""
        await arrived(self._rates.of_session(session_id))

    async def counted(self, handle: TaskHandle, who: RequestContext) -> Task:
        """As `find`; the request is counted, unless the task is unknown to this request. Raises as `get`, but never
        `OwnedByPeer`."""
        task = await self.find(handle, who)
        await self.count(task.session_id)
        return task

    async def current(self, handle: TaskHandle, who: RequestContext, *, counts: bool = False) -> Task:
        """The record of a task, decided on if its owner is gone. An outcome is stored before it is returned: it is what
        any replica says from then on. `counts`: the request is counted.

        Raises: as `get`; `StoreUnavailable` also if the store does not take the outcome.
        """
        task = await (self.counted(handle, who) if counts else self.find(handle, who))
        running = self._run_here(task.name)
        if running is not None:
            return await self._stored(running, handle, who)
        if task.is_over:
            return task
        session = await self._sessions.peek(task.session_id)
        if session is not None and await self._is_run_by_another(session, task):
            return task
        running = await self._here(task, session, who)
        return await self.find(handle, who) if running is None else await self._stored(running, handle, who)

    async def _stored(self, running: RunningTask, handle: TaskHandle, who: RequestContext) -> Task:
        """The record of a task that is run here. Raises as `current`."""
        if (told := running.record.told) is not None:
            return told
        try:
            async with asyncio.timeout(_STORED_S):
                await running.settled()
        except TimeoutError:
            raise StoreUnavailable("the outcome of a task is not stored yet") from None
        return await self.find(handle, who)  # the store may have no room for the outcome, or another one's

    async def update(self, handle: TaskHandle, params: Object, who: RequestContext) -> bytes:
        """Pass on the client's answers (`inputResponses`). Answers to what is not asked are ignored. Raises as
        `get`."""
        responses = decode_object(params.get("inputResponses", msgspec.Raw(b"{}")), "inputResponses")
        running = await self._running(handle, who)
        if running is not None:
            running.answer(responses)
        return acknowledgement()

    async def cancel(self, handle: TaskHandle, who: RequestContext) -> bytes:
        """Cancel the call of a task. Raises as `get`."""
        running = await self._running(handle, who)
        if running is not None:
            running.cancel("the client has cancelled the task")
        return acknowledgement()

    async def cancelled(self, handle: TaskHandle, who: RequestContext) -> Task:
        """As `cancel`; returns the task, which is cancelled.

        Raises:
            Refused: also, the task is over already.
            StoreUnavailable: also, another replica runs the task by now.
        """
        running = await self._running(handle, who)
        if running is None or running.task.is_over:
            raise task_is_over((await self.current(handle, who)).status)
        running.cancel("the client has cancelled the task")
        task = await self._stored(running, handle, who)
        if not task.is_over:
            raise StoreUnavailable("another gateway runs the task by now")
        if task.status != "cancelled":  # another replica has decided on it meanwhile
            raise task_is_over(task.status)
        return task

    async def seen(self, heads: Iterable[Task], endpoint: str, who: RequestContext) -> list[Task]:
        """Those of these tasks that were made at that endpoint, as far as this request may see them. Not counted.
        Raises `StoreUnavailable`."""
        own = [task for task in heads if (task.principal, task.endpoint) == (who.principal, endpoint)]
        ids = sorted({task.session_id for task in own})
        sessions = dict(zip(ids, await asyncio.gather(*map(self._sessions.peek, ids)), strict=True))
        return [self._as_it_works(task) for task in own if self._may_see(task, sessions[task.session_id], who)]

    def _as_it_works(self, task: Task) -> Task:
        """A stored task, or what is known of it here as long as it has no outcome that is not stored."""
        return self._told(task.name) or task

    def _told(self, name: str) -> Task | None:
        """What is known here of a task that runs here, and may be told."""
        running = self._table.get(name)
        return None if running is None else running.record.told

    def _run_here(self, name: str) -> RunningTask | None:
        """The task of that name, if it is this replica's. The call of one that another replica has taken over can
        still be in flight here, and knows nothing of its outcome."""
        running = self._table.get(name)
        return None if running is None or running.record.is_lost else running

    async def _running(self, handle: TaskHandle, who: RequestContext) -> RunningTask | None:
        """The task, if it still works; this replica runs it."""
        task = await self.counted(handle, who)
        if task.is_over:
            return None
        return self._run_here(task.name) or await self._here(task, await self._sessions.peek(task.session_id), who)

    async def find(self, handle: TaskHandle, who: RequestContext) -> Task:
        """The record of a task as it stands, without an outcome that is not stored. Not counted. Raises as `get`, but
        never `OwnedByPeer`."""
        told = self._told(f"{handle.session_id}/{handle.id}")
        task = told or await self._table.store.get(handle.session_id, handle.id)
        return await self.checked(task, handle, who)

    async def checked(self, task: Task | None, handle: TaskHandle, who: RequestContext) -> Task:
        """That task, which was read for the handle. Raises `Refused`: this request may not learn of it."""
        reason = "unknown task" if task is None else "task of another principal"
        if task is not None and (task.principal, task.endpoint) == (who.principal, handle.endpoint):
            if self._may_see(task, await self._sessions.peek(task.session_id), who):
                return task
            reason = "task of a tool that this credential may not use"
        self._audit.record("refused", session=handle.session_id, principal=str(who.principal), reason=reason)
        raise UnknownTask()

    async def _is_run_by_another(self, session: Session, task: Task) -> bool:
        """Whether another replica runs the task, as far as the store tells."""
        cluster = self._cluster
        if cluster is None or session.owner in ("", cluster.replica) or session.epoch != task.epoch:
            return False
        _, is_leased = await cluster.address_of(session.owner)
        return is_leased

    async def _here(self, task: Task, session: Session | None, who: RequestContext) -> RunningTask | None:
        """Make this replica the one that runs a task, or decide on the task if nobody runs it."""
        if session is not None and not self._recovery.is_here(session):
            found = await found_session(session.id, who, self._resolver, Era(session.era))
            session = None if found is None else found.live.session
        if self._table.get(task.name) is None:
            await self._recovery.decide(task, session)
        return self._table.get(task.name)
