"""Implement the operators' verbs (`gateway.admin.verbs`) with a store, and with the replicas that use the store."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from gateway.admin.operator_tool_calls import EndsSessions, Left, Records, TriedCalls
from gateway.admin.query_types import (
    SHORTEST_PREFIX,
    Ambiguous,
    NoSuch,
    OperatorError,
    SessionFilter,
    TaskPage,
    TaskQuery,
    TooLate,
    TooShort,
    UnknownHere,
)
from gateway.admin.replica_queries import Replicas
from gateway.admin.report_types import (
    Approval,
    Attempt,
    CatalogPage,
    Range,
    ReloadReport,
    ReplicaReport,
    SessionEnvironment,
    SessionPart,
    SessionRow,
    TaskRow,
    TriedCall,
    UnapprovedRow,
    UsageRow,
    detached,
)
from gateway.admin.session_list import SessionFinder, SessionList
from gateway.admin.session_list_selection import fits
from gateway.admin.session_watches import SessionWatches
from gateway.admin.this_replica import Replica
from gateway.admin.timelines_and_history import ActivityQueries
from gateway.config.settings import Settings
from gateway.context.consented_tokens import Connection, ConsentedTokens, Grant
from gateway.observability.audit import Audit
from gateway.sessions.client_return_tracking import ClientWarning, merge_warnings
from gateway.sessions.lifecycle import ENDED
from gateway.tasks.task_handles import TaskHandle, claimed
from session_store import AuditEvent, Backend, Session, SessionGone, StoreUnavailable, Task, TaskStore
from session_store.session import redact
from transports.work_steps import slices

SEARCHED: Final = 20_000
"""The number of the newest tasks that a search reads at most."""

_READ_AT_ONCE: Final = 1_000
_ENDED_AT_ONCE: Final = 32
"""The number of sessions that are ended concurrently. Ending one waits until its processes have ended."""

_EVENTS_SEARCHED: Final = 2_000
"""The number of the newest events that are searched for the events of one session."""

_FOLLOW_EVERY_S: Final = 1.0
_FOLLOWED_AT_ONCE: Final = 500


class Operations:
    """Implement `admin.verbs.Operators`. `record`: writes an operator's action to the audit trail. `ending`: ends
    sessions. `tried` (lists and calls tools) and `consented` (credentials that principals have connected) are None if
    there is no running gateway."""

    def __init__(
        self,
        *,
        backend: Backend,
        replicas: Replicas,
        ending: EndsSessions,
        record: Records,
        clock: Callable[[], float],
        tried: TriedCalls | None = None,
        settings: Settings | None = None,
        consented: ConsentedTokens | None = None,
    ) -> None:
        self._consented = consented
        self.settings = settings or Settings()
        self._backend = backend
        self._replicas = replicas
        self._ending = ending
        self._record = record
        self._clock = clock
        self._list = SessionList(backend, replicas, clock)
        self._tasks = TaskList(backend.tasks, clock)
        self._finder = SessionFinder(backend.sessions, clock)
        self._tried = tried
        self.watches = SessionWatches(self._finder, replicas, record, self.settings.gateway)
        # Verbs that these classes, and `ActivityQueries` below, implement:
        self.sessions = self._list.page
        self.tasks = self._tasks.page
        self.task = self._tasks.row
        self.frames = self.watches.frames
        self.stderr = self.watches.stderr
        self.switch_frames_on = self.watches.switch_on
        self.switch_frames_off = self.watches.switch_off
        activity = ActivityQueries(backend, replicas, clock)
        self.timeline = activity.timeline
        self.past_sessions = activity.past_sessions
        self.history = activity.history
        self.usage = activity.usage
        self.servers = activity.servers

    def replace(self, settings: Settings) -> None:
        """Show operators the configuration `settings`, which was just loaded, from now on."""
        self.settings = settings

    @property
    def sees_calls(self) -> bool:
        return self._replicas.are_known

    @property
    def is_draining(self) -> bool:
        """Return True if this replica drains. Event streams to operators then end, so that operators connect to another
        replica."""
        return self._replicas.is_draining

    @property
    def tried(self) -> TriedCalls:
        """Return the object that lists tools, and calls them for operators. Raises `UnknownHere` if there is no running
        gateway."""
        if self._tried is None:
            raise UnknownHere("only a running gateway knows tools and calls them: use --url")
        return self._tried

    async def catalog(self, query: str = "", server: str = "", limit: int = 100) -> CatalogPage:
        return self.tried.catalog.page(query, server=server, limit=limit)

    async def unapproved(self, server: str = "") -> list[UnapprovedRow]:
        return await self.tried.catalog.unapproved(server)

    async def approve(self, approval: Approval, by: str = "") -> list[ReloadReport]:
        what = await self.tried.catalog.approve(approval)
        self._record(reason=f"{_operator(by)} has approved the {what} ({approval.digest})")
        return await self._replicas.reload()

    async def credentials(self) -> list[Connection]:
        return await self._tokens.connections()

    async def revoke(self, principal: str = "", secret: str = "", by: str = "") -> int:
        if not (principal or secret):
            raise OperatorError("name a principal, a secret, or both")

        def is_meant(grant: Grant) -> bool:
            return principal in ("", str(grant.principal)) and secret in ("", grant.secret)

        count = await self._tokens.revoke(is_meant)
        what = " ".join(filter(None, (secret and f"{secret!r}", principal and f"of {principal}")))
        self._record(reason=f"{_operator(by)} has revoked {count} credentials: {what}")
        return count

    @property
    def _tokens(self) -> ConsentedTokens:
        if self._consented is None:
            raise UnknownHere("only a running gateway can read credentials, which are encrypted: use --url")
        return self._consented

    async def call(self, attempt: Attempt, by: str = "", *, peer: str = "", left: Left | None = None) -> TriedCall:
        return await self.tried.call(attempt, by, peer=peer, left=left)

    async def tools(self, over: Range = "15m") -> list[UsageRow]:
        return await self.usage("tool", over)

    # -- replicas

    async def replicas(self) -> list[ReplicaReport]:
        return await self._replicas.reports()

    async def warnings(self) -> list[ClientWarning]:
        return merge_warnings(client for report in await self._replicas.reports() for client in report.warnings)

    async def drain(self, prefix: str, by: str = "") -> str:
        name = await self._replicas.order(Replica.drain, prefix)
        self._record(reason=f"{_operator(by)} has drained replica {name}")
        return name

    async def admit(self, prefix: str, by: str = "") -> str:
        name = await self._replicas.order(Replica.admit, prefix)
        self._record(reason=f"{_operator(by)} has admitted replica {name} again")
        return name

    async def reload(self, by: str = "") -> list[ReloadReport]:
        self._replicas.require("only a running gateway can load its configuration again: use --url")
        self._record(reason=f"{_operator(by)} has asked all replicas to load their configuration again")
        return await self._replicas.reload()

    # -- sessions

    async def session(self, prefix: str) -> SessionRow:
        session = await self._finder.find(prefix)
        row = (await self._list.rows([session]))[0]
        try:
            keys = await self._backend.state.keys(session.id)
        except SessionGone:
            raise NoSuch("the session has just ended") from None
        return msgspec.structs.replace(row, state_keys=keys)

    async def environment(self, prefix: str) -> SessionEnvironment:
        return await self._replicas.environment(await self._finder.find(prefix))

    async def end(self, prefix: str, by: str = "") -> str:
        session = await self._finder.find(prefix)
        part = (await self._replicas.parts([session.id])).get(session.id)
        calls = None if part is None else part.calls
        if not await self._ending.end(session.id, f"{_operator(by)} ended it", calls):
            raise NoSuch("the session has just ended")
        return redact(session.id)

    async def end_all(self, which: SessionFilter, by: str = "") -> int:
        reason, ended = f"{_operator(by)} ended all of {which}", 0
        async for found in self._matching(which):
            for some in slices(found, _ENDED_AT_ONCE):
                calls = (None if part is None else part.calls for _, part in some)
                ends = (self._ending.end(one.id, reason, of_it) for (one, _), of_it in zip(some, calls, strict=True))
                ended += sum(await asyncio.gather(*ends))
        self._record(reason=f"{_operator(by)} has ended all sessions of {which}: {ended}")
        return ended

    async def _matching(self, which: SessionFilter) -> AsyncIterator[list[tuple[Session, SessionPart | None]]]:
        """Yield the sessions that match the filter, one list for each page of the store. With each session comes what
        the replica that serves it knows of it; None if no replica serves it."""
        if not which.is_of_records and not self._replicas.are_known:
            raise UnknownHere("the store does not record states and failures: use --url with a running gateway")
        place = ""
        while page := await self._backend.sessions.page(after=place, limit=_READ_AT_ONCE):
            place = f"{page[-1].id}~"
            answers = await self._replicas.ask(Replica.brief_parts, [session.id for session in page])
            parts = {part.id: part for some in answers.by.values() for part in some}
            if answers.unanswered and which.state == "detached":  # what a silent replica serves looks like that
                raise OperatorError(
                    f"{answers.unanswered} replicas did not answer, so it is not known which sessions are detached: "
                    "try again, or look at them with `replicas list`"
                )
            pairs = [(session, parts.get(session.id)) for session in page]
            yield [(session, part) for session, part in pairs if fits(which, session, part or detached(session))]

    # -- tasks

    async def cancel_task(self, prefix: str, by: str = "") -> str:
        task = await self._tasks.found(prefix)
        if task.is_over:
            raise TooLate(f"the task is over already: {task.status}")
        self._replicas.require("only a running gateway can cancel a task: use --url")
        answers = await self._replicas.ask(Replica.cancel_task, task.name, f"{_operator(by)} cancelled the task")
        if not any(answers.by.values()):
            raise TooLate("no replica runs the task: it has just ended, or its replica is gone; look again in a moment")
        self._record(reason=f"{_operator(by)} has cancelled a task of session {redact(task.session_id)}: {task.tool}")
        return redact(task.id)

    # -- events

    async def events(self, limit: int = 100, session: str = "") -> list[dict[str, Any]]:
        trail = await self._backend.audit.recent(max(limit, _EVENTS_SEARCHED) if session else limit)
        wanted = [event for event in trail if not session or event.session == redact(session)]
        return [_facts(event) for event in wanted[:limit]]

    async def follow(self, session: str = "") -> AsyncIterator[dict[str, Any]]:
        seen: set[bytes] | None = None
        while not self._replicas.is_draining:
            try:
                latest = await self.events(_FOLLOWED_AT_ONCE, session)
            except StoreUnavailable:
                latest = []
            if latest:
                by_text = {msgspec.json.encode(event): event for event in latest}
                for text in reversed(by_text) if seen is not None else ():
                    if text not in (seen or ()):
                        yield by_text[text]
                seen = set(by_text)
            seen = seen or set()
            await asyncio.sleep(_FOLLOW_EVERY_S)


def _operator(by: str) -> str:
    return f"the operator {by}" if by else "the operator"


def _facts(event: AuditEvent) -> dict[str, Any]:
    """Return the fields of an event by name, without empty ones."""
    facts = {
        name: value for name in event.__struct_fields__ if (value := getattr(event, name)) not in ("", 0.0, None, {})
    }
    return facts if event.calls is None else facts | {"calls": event.calls}


def operations_on(backend: Backend) -> Operations:
    """Return the implementation of the operators' verbs for an open store without a running gateway. Processes are
    unknown then, and verbs such as `reload`, which only a gateway can carry out, raise `UnknownHere`."""
    return Operations(
        backend=backend,
        replicas=Replicas(backend),
        ending=_StoreEnding(backend),
        record=lambda **_: None,  # `_StoreEnding` records the only thing that can be done here
        clock=time.time,
    )


class _StoreEnding:
    """End sessions in the store, and notify the gateways that serve them over the store's bus."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool:
        session = await self._backend.sessions.peek(session_id)
        if session is None or not await self._backend.sessions.end(session_id):
            return False
        await self._backend.bus.publish(ENDED, session_id.encode())
        audit = Audit(self._backend.audit, time.time)
        audit.ended("ended", session, reason, calls)
        await audit.flush()
        return True


class TaskList:
    """List and find tasks in a store."""

    def __init__(self, tasks: TaskStore, clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock

    async def page(self, query: TaskQuery) -> TaskPage:
        """Return a page of the tasks that match, newest first. If `query.query` is a task's id as its client gets it,
        return only this task.

        Raises:
            NoSuch: `query.after` names no task; or `query.query` is the id of a task, as clients get it, and no such
                task exists.
        """
        if (handle := claimed(query.query)) is not None:
            return TaskPage(tasks=[task_row(await self._of_client(handle), self._clock())])
        before = await self.found(query.after) if query.after else None
        matching: list[Task] = []
        async for task in self._newest(before, _READ_AT_ONCE if query.query or query.status else query.limit + 1):
            if query.matches(task):
                matching.append(task)
                if len(matching) > query.limit:
                    break
        rows, now = matching[: query.limit], self._clock()
        after = redact(rows[-1].id) if len(matching) > query.limit else ""
        return TaskPage(tasks=[task_row(task, now) for task in rows], after=after)

    async def row(self, prefix: str) -> TaskRow:
        """Find the task as `found` does, and return it as operators see it. Raises the errors of `found`."""
        return task_row(await self.found(prefix), self._clock())

    async def found(self, prefix: str) -> Task:
        """Return the one task that `prefix` names: the beginning of the task's id, or the whole id that the task's
        client has. Raises `NoSuch`, `Ambiguous` or `TooShort`."""
        if (handle := claimed(prefix)) is not None:
            return await self._of_client(handle)
        if len(prefix) < SHORTEST_PREFIX:
            raise TooShort("task")
        matching = [task async for task in self._newest(None, _READ_AT_ONCE) if task.id.startswith(prefix)]
        if len(matching) > 1:
            raise Ambiguous(f"more than one task begins with {prefix!r}: give more characters of the id")
        if not matching:
            raise NoSuch(f"no task begins with {prefix[:64]!r}: it has expired, or never existed")
        # The list has tasks without their questions, which are counted.
        return await self._tasks.get(matching[0].session_id, matching[0].id) or matching[0]

    async def _of_client(self, handle: TaskHandle) -> Task:
        if handle.kind == "relayed":
            raise NoSuch(f"server {handle.server!r} has made this task, and only the server knows it")
        task = await self._tasks.get(handle.session_id, handle.id)
        if task is None:
            raise NoSuch("the task has expired, or its session was ended")
        return task

    async def _newest(self, before: Task | None, size: int) -> AsyncIterator[Task]:
        for _ in range(0, SEARCHED, size):
            page = await self._tasks.page(before=before, limit=size)
            for task in page:
                yield task
            if len(page) < size:
                return
            before = page[-1]


def task_row(task: Task, now: float) -> TaskRow:
    """Return a task as operators see it at the Unix time `now`. The row has the number of questions to the task's
    client, but not the task's result."""
    error = msgspec.json.decode(task.error, type=_Error) if task.error else _Error()
    return TaskRow(
        task=redact(task.id),
        session=redact(task.session_id),
        principal=str(task.principal),
        endpoint=task.endpoint,
        server=task.server,
        tool=task.tool,
        status=task.status,
        message=task.message,
        age_s=round(max(0.0, now - task.created_at), 1),
        idle_s=round(max(0.0, now - task.updated_at), 1),
        expires_in_s=round(task.expires_at - now, 1),
        runs=task.runs,
        asked=task.asked,
        error_code=error.code,
        error=error.message,
        tool_error=task.is_tool_error,
    )


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""
