"""Answer clients' requests about tasks that the gateway has created.

Any replica can answer about an ended task, from the store. Other requests go to the replica that runs the task: the
owner of the session, or the replica that takes the session over from a dead owner.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from gateway.errors import SESSION_UNKNOWN
from gateway.identity.context_rules import ContextRules
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.policy.access_policy import Policy
from gateway.policy.rate_limits import RateLimits
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from gateway.tasks.errors import UnknownTask, task_is_over
from gateway.tasks.gateway_tasks.quotas import TaskQuotas
from gateway.tasks.gateway_tasks.recovery import TaskRecovery
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.task_table import TaskTable
from gateway.tasks.relay_interfaces import TaskServers
from gateway.tasks.task_handles import TaskHandle
from gateway.tasks.task_messages import ACKNOWLEDGEMENT, task_result
from session_store import Session, SessionStore, StoreUnavailable, Task
from session_store.ports.tasks import ids_of
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, Object, decode_object, encode

_STORED_S: Final = 10.0
"""Seconds that a request waits until the outcome of its task is stored."""

PAGE: Final = 64
"""Number of records read for a page. A page has fewer tasks, or none, if some have expired or are hidden."""

_ELSEWHERE: Final = "/"
"""First character of a page cursor that points into the tasks of the principal's other sessions; the name of a task
follows. A cursor that points into the tasks of the session itself begins with another character."""

_FIRST: Final = (0.0, "")

MaySee = Callable[[Task, Session | None, RequestContext], bool]
"""A function that returns True if the credential of a request may use the task's tool now, so that the request may see
the task. It is called with the task, its session (None if it has ended) and the sender."""


class TaskVisibility:
    """Decides if a request may see a task: its credential must allow calls of the task's tool. `endpoints` has the
    servers of each endpoint, by URL path."""

    def __init__(self, rules: ContextRules, endpoints: Mapping[str, TaskServers], policy: Policy) -> None:
        self._rules = rules
        self._endpoints = endpoints
        self._policy = policy

    def may_see(self, task: Task, session: Session | None, who: RequestContext) -> bool:
        """Return True if policy lets this request call the task's tool. `who` must be the task's principal. `session`
        is the task's session; if it has ended (None), the workspace that its client announced does not count."""
        try:
            if session is None:
                context = self._rules.context(who.principal, who.claims, "")
            else:
                context = self._rules.renewed(session, who.claims)
        except Refused:
            return False
        endpoint = self._endpoints.get(task.endpoint)
        if endpoint is None or endpoint.server(task.server, context) is None:
            return False
        return self._policy.decide_approved(context, task.server, task.tool, task.operation).allowed


async def session_of(handle: TaskHandle, who: RequestContext, resolver: SessionResolver, era: Era) -> Resolved:
    """Return the session of a task, for a request from a client of this era (legacy or modern MCP). Raises
    `UnknownTask` if there is none, and the errors of `found_session`."""
    found = await found_session(handle.session_id, who, resolver, era)
    if found is None:
        raise UnknownTask()
    return found


async def found_session(session_id: str, who: RequestContext, resolver: SessionResolver, era: Era) -> Resolved | None:
    """Return the session with this id, for a request of `who` from a client of this era. Return None if there is no
    such session, or if it belongs to another principal.

    Raises:
        Refused: the session cannot be used now.
        OwnedByPeer: another replica owns the session.
        StoreUnavailable: the store does not answer.
    """
    try:
        return await resolver.resume_by_id(session_id, who, era)
    except Refused as refused:
        if refused.code != SESSION_UNKNOWN:
            raise
        return None


@dataclass(eq=False, repr=False)
class MadeTasks:
    """Answers requests about the tasks that the gateway has created, for all sessions. A task is unknown to other
    principals, and to credentials that may not use its tool."""

    table: TaskTable
    recovery: TaskRecovery
    _: KW_ONLY
    sessions: SessionStore
    resolver: SessionResolver
    quotas: TaskQuotas
    rates: RateLimits
    audit: Audit
    may_see: MaySee

    async def get(self, handle: TaskHandle, text: str, who: RequestContext) -> bytes:
        """Return the result of `tasks/get` as JSON. `text` is the handle that the client has sent.

        Raises:
            Refused: the task is unknown; 429, its session sends too many requests.
            OwnedByPeer: another replica has to answer.
            StoreUnavailable: the store does not answer.
        """
        return task_result(await self.current(handle, who, counts=True), text)

    async def count(self, session_id: str) -> None:
        """Count a request about tasks against the rate limit of their session. The caller has checked that the sender
        is the session's principal: other principals must not use up the rate. Raises `Refused`: 429, too many
        requests."""
        await self.rates.count_call(session_id)

    async def counted(self, handle: TaskHandle, who: RequestContext) -> Task:
        """Return the record of a task as `find` does, and then count the request against the rate limit of the session.
        A request that may not see the task is not counted. Raises the errors of `get`, except `OwnedByPeer`."""
        task = await self.find(handle, who)
        await self.count(task.session_id)
        return task

    async def current(self, handle: TaskHandle, who: RequestContext, *, counts: bool = False) -> Task:
        """Return the record of a task. If the replica that has run it is gone, recover the task first. If the task has
        ended, wait until the outcome is stored, so that every replica gives the same answer. `counts`: count the
        request against the rate limit of the session.

        Raises the errors of `get`; `StoreUnavailable` also if the outcome is not stored in time.
        """
        task = await (self.counted(handle, who) if counts else self.find(handle, who))
        running = self._run_here(task.name)
        if running is not None:
            return await self._stored(running, handle, who)
        if task.is_over:
            return task
        session = await self.sessions.peek(task.session_id)
        if session is not None and await self.recovery.is_run_by_another(session, task):
            return task
        running = await self._here(task, session, who)
        return await self.find(handle, who) if running is None else await self._stored(running, handle, who)

    async def _stored(self, running: RunningTask, handle: TaskHandle, who: RequestContext) -> Task:
        """Return the record of a task that runs here. If it has ended, wait until the outcome is stored. Raises the
        errors of `current`."""
        if (told := running.record.told) is not None:
            return told
        try:
            async with asyncio.timeout(_STORED_S):
                await running.settled()
        except TimeoutError:
            raise StoreUnavailable("the outcome of a task is not stored yet") from None
        return await self.find(handle, who)  # the stored outcome may differ: no room for it, or another replica's

    async def update(self, handle: TaskHandle, params: Object, who: RequestContext) -> bytes:
        """Pass the client's answers (`inputResponses`) to the task, and return the acknowledgement. Ignore answers to
        questions that are not open. Raises the errors of `get`."""
        responses = decode_object(params.get("inputResponses", msgspec.Raw(b"{}")), "inputResponses")
        running = await self._running(handle, who)
        if running is not None:
            running.answer(responses)
        return ACKNOWLEDGEMENT

    async def cancel(self, handle: TaskHandle, who: RequestContext) -> bytes:
        """Cancel the call of a task that has not ended, and return the acknowledgement. Raises the errors of `get`."""
        running = await self._running(handle, who)
        if running is not None:
            running.cancel("the client has cancelled the task")
        return ACKNOWLEDGEMENT

    async def cancelled(self, handle: TaskHandle, who: RequestContext) -> Task:
        """Cancel the call of a task, and return the cancelled task.

        Raises the errors of `get`, and:
            Refused: the task has already ended.
            StoreUnavailable: another replica has taken the task over.
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

    async def page(self, session: Session, endpoint: str, who: RequestContext, after: str) -> tuple[list[Task], str]:
        """Return a page of the tasks that this client may see, and the cursor of the next page (MCP 2025-11-25, Tasks).
        The cursor is empty if this page is the last. `after` is the cursor that the client has sent; empty for the
        first page.

        The session's own tasks come first, oldest first, then those of the principal's other sessions, by name.
        Anonymous clients share one principal, so they get only the tasks of their session. The tasks are without
        outcome (`TaskStore`). The request is not counted.

        Raises:
            Refused: `after` is no valid cursor.
            StoreUnavailable: the store does not answer.
        """
        heads: list[Task] = []
        more = ""
        if not after.startswith(_ELSEWHERE):
            heads = await self.table.store.of_session(
                session.id, after=_place_of(after) if after else _FIRST, limit=PAGE + 1
            )
            if len(heads) > PAGE:
                del heads[PAGE:]
                more = encode(heads[-1].place).decode()
            after = _ELSEWHERE
        if not more and not who.principal.is_anonymous:
            past, room = after.removeprefix(_ELSEWHERE), PAGE - len(heads)
            names = sorted(
                name
                for name in await self.quotas.of_principal(who.principal)
                if name > past and ids_of(name)[0] != session.id
            )
            heads += await self.table.store.heads(names[:room])
            if len(names) > room:
                more = _ELSEWHERE + (names[room - 1] if room else past)
        return await self.visible(heads, endpoint, who), more

    async def visible(self, heads: Iterable[Task], endpoint: str, who: RequestContext) -> list[Task]:
        """Return those of `heads` (tasks without outcome) that belong to this endpoint and that the request may see.
        The request is not counted. Raises `StoreUnavailable`."""
        own = [task for task in heads if (task.principal, task.endpoint) == (who.principal, endpoint)]
        ids = sorted({task.session_id for task in own})
        sessions = dict(zip(ids, await asyncio.gather(*map(self.sessions.peek, ids)), strict=True))
        seen = (task for task in own if self.may_see(task, sessions[task.session_id], who))
        return [self._told(task.name) or task for task in seen]  # a task that works here has a newer version

    def _told(self, name: str) -> Task | None:
        """Return the record of the task `name`, as clients may see it, if the task works on this replica. Return None
        if the task does not run here or has ended: then the stored record counts."""
        running = self.table.get(name)
        return None if running is None else running.record.told

    def _run_here(self, name: str) -> RunningTask | None:
        """Return the running task with this name, if this replica still owns it; else None. A task that another replica
        has taken over may still have a call in flight here, but the call does not determine the outcome."""
        running = self.table.get(name)
        return None if running is None or running.record.is_lost else running

    async def _running(self, handle: TaskHandle, who: RequestContext) -> RunningTask | None:
        """Count the request, and return the running task. If no replica runs it, recover it first. Return None if the
        task has ended or does not run on this replica even then."""
        task = await self.counted(handle, who)
        if task.is_over:
            return None
        return self._run_here(task.name) or await self._here(task, await self.sessions.peek(task.session_id), who)

    async def find(self, handle: TaskHandle, who: RequestContext) -> Task:
        """Return the record of a task: the present one if the task works on this replica, otherwise the stored one. The
        request is not counted. Raises the errors of `get`, except `OwnedByPeer`."""
        told = self._told(handle.name)
        task = told or await self.table.store.get(handle.session_id, handle.id)
        return await self.checked(task, handle, who)

    async def checked(self, task: Task | None, handle: TaskHandle, who: RequestContext) -> Task:
        """Return `task`, a record that was already read, if this request may see the task. If not, or if `task` is None
        because there is no record, raise `UnknownTask`."""
        why = "unknown task" if task is None else "task of another principal"
        if task is not None and (task.principal, task.endpoint) == (who.principal, handle.endpoint):
            if self.may_see(task, await self.sessions.peek(task.session_id), who):
                return task
            why = "task of a tool that this credential may not use"
        about = {"session": handle.session_id, "principal": str(who.principal)}
        raise self.audit.refused(UnknownTask(), about, why=why)

    async def _here(self, task: Task, session: Session | None, who: RequestContext) -> RunningTask | None:
        """Return the running task. If no replica runs it, recover it first. Return None if the task does not run on
        this replica even then. `session` is the task's session; None if it has ended."""
        if session is not None and not self.recovery.is_here(session):
            found = await found_session(session.id, who, self.resolver, Era(session.era))
            session = None if found is None else found.live.session
        if self.table.get(task.name) is None:
            await self.recovery.decide(task, session)
        return self.table.get(task.name)


def _place_of(after: str) -> tuple[float, str]:
    """Decode a cursor: the creation time and id of a task. Raises `Refused`: the cursor is invalid."""
    try:
        place: tuple[float, str] = msgspec.json.decode(after, type=tuple[float, str])
    except msgspec.MsgspecError:
        raise Refused(200, INVALID_PARAMS, "Invalid cursor", reason="invalid_cursor") from None
    return place
