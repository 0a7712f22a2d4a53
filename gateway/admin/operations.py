"""The operators' model on a store: its records, and what the replicas that use the store know beside them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

import msgspec

from gateway.admin.figures import Range, UsageRow
from gateway.admin.frames import Records, SessionWatches
from gateway.admin.insights import Insights
from gateway.admin.operators import (
    NoSuch,
    OperatorError,
    SessionFilter,
    TaskPage,
    TaskQuery,
    TooLate,
    UnknownHere,
)
from gateway.admin.replica import Replica
from gateway.admin.replicas import Replicas
from gateway.admin.reports import (
    Attempt,
    CatalogPage,
    ReplicaReport,
    SessionEnvironment,
    SessionPart,
    SessionRow,
    TaskRow,
    TriedCall,
)
from gateway.admin.session_finder import SessionFinder
from gateway.admin.session_list import SEARCH_LIMIT, SessionList
from gateway.admin.session_selection import facts_of, fits
from gateway.admin.tasks import TaskList
from gateway.admin.tried_calls import Left, TriedCalls
from gateway.config.settings import Settings
from gateway.sessions.returns import UnreturningClient, together
from session_store import AuditEvent, Backend, Session, SessionGone, StoreUnavailable
from session_store.session import redact
from transports.turns import slices

__all__ = ["EndsSessions", "Operations"]

_READ_AT_ONCE: Final = 1_000
_ENDED_AT_ONCE: Final = 32
"""Each end waits until the session's processes are gone."""
_EVENTS_SEARCHED: Final = 2_000
"""Events among which those of one session are looked for."""

_FOLLOW_EVERY_S: Final = 1.0
_FOLLOWED_AT_ONCE: Final = 500


class EndsSessions(Protocol):
    """Ends sessions on every replica."""

    async def end(self, session_id: str, reason: str, calls: int | None = None) -> bool:
        """False if the session had ended already. `calls`: how many its replica has answered, None if not known."""
        ...


class Operations:
    """Implements `admin.page.ConsoleOperators`. `record` keeps what an operator did in the audit trail."""

    def __init__(
        self,
        *,
        backend: Backend,
        replicas: Replicas,
        ending: EndsSessions,
        record: Records,
        clock: Callable[[], float],
        search_limit: int = SEARCH_LIMIT,
        tried: TriedCalls | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._backend = backend
        self._replicas = replicas
        self._ending = ending
        self._record = record
        self._clock = clock
        self._list = SessionList(backend, replicas, clock, search_limit)
        self.sessions = self._list.page
        self._tasks = TaskList(backend.tasks, clock)
        self._finder = SessionFinder(backend.sessions, clock)
        self._tried = tried
        self.watches = SessionWatches(self._finder, replicas, record, self.settings.gateway)
        self.frames = self.watches.frames
        self.stderr = self.watches.stderr
        self.switch_frames_on = self.watches.switch_on
        self.switch_frames_off = self.watches.switch_off
        insights = Insights(backend, replicas, clock)
        self.timeline = insights.timeline
        self.past_sessions = insights.past_sessions
        self.history = insights.history
        self.usage = insights.usage
        self.servers = insights.servers

    @property
    def sees_calls(self) -> bool:
        return self._replicas.are_known

    @property
    def is_draining(self) -> bool:
        """True if this replica drains: streams to operators end, so that they ask another."""
        return self._replicas.is_draining

    @property
    def tried(self) -> TriedCalls:
        """The tools of the servers, and calls of them."""
        if self._tried is None:
            raise UnknownHere("only a running gateway knows tools and calls them: use --url")
        return self._tried

    async def catalog(self, query: str = "", server: str = "", limit: int = 100) -> CatalogPage:
        return self.tried.catalog.page(query, server=server, limit=limit)

    async def call(self, attempt: Attempt, by: str = "", *, peer: str = "", left: Left | None = None) -> TriedCall:
        return await self.tried.call(attempt, by, peer=peer, left=left)

    async def tools(self, over: Range = "15m") -> list[UsageRow]:
        return await self.usage("tool", over)

    # -- replicas

    async def replicas(self) -> list[ReplicaReport]:
        return await self._replicas.reports()

    async def warnings(self) -> list[UnreturningClient]:
        return together(client for report in await self._replicas.reports() for client in report.unreturning)

    async def drain(self, prefix: str, by: str = "") -> str:
        name = await self._replicas.order(Replica.drain, prefix)
        self._record(f"{_operator(by)} has drained replica {name}")
        return name

    async def admit(self, prefix: str, by: str = "") -> str:
        name = await self._replicas.order(Replica.admit, prefix)
        self._record(f"{_operator(by)} has admitted replica {name} again")
        return name

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
        self._record(f"{_operator(by)} has ended all sessions of {which}: {ended}")
        return ended

    async def _matching(self, which: SessionFilter) -> AsyncIterator[list[tuple[Session, SessionPart | None]]]:
        """All sessions that match, page by page, with what the replica knows that serves them."""
        if not which.is_of_records and not self._replicas.are_known:
            raise UnknownHere("the store does not record states and failures: use --url with a running gateway")
        place = ""
        while page := await self._backend.sessions.page(after=place, limit=_READ_AT_ONCE):
            place = f"{page[-1].id}~"
            answers = await self._replicas.ask(Replica.brief_parts, [session.id for session in page])
            parts = {part.id: part for some in answers.by.values() for part in some}
            if answers.unanswered and which.state == "detached":  # what a silent replica serves looks like that
                raise OperatorError(
                    f"{answers.unanswered} replicas did not answer, so nobody knows which sessions are detached: try "
                    "again, or look at them with `replicas list`"
                )
            pairs = [(session, parts.get(session.id)) for session in page]
            yield [(session, part) for session, part in pairs if fits(which, session, facts_of(session, part))]

    # -- tasks

    async def tasks(self, query: TaskQuery) -> TaskPage:
        return await self._tasks.page(query)

    async def task(self, prefix: str) -> TaskRow:
        return await self._tasks.row(prefix)

    async def cancel_task(self, prefix: str, by: str = "") -> str:
        task = await self._tasks.found(prefix)
        if task.is_over:
            raise TooLate(f"the task is over already: {task.status}")
        self._replicas.require("only a running gateway can cancel a task: use --url")
        answers = await self._replicas.ask(Replica.cancel_task, task.name, f"{_operator(by)} cancelled the task")
        if not any(answers.by.values()):
            raise TooLate(
                "no replica runs the task: it has just ended, or its replica is gone; look at it again in a while"
            )
        self._record(f"{_operator(by)} has cancelled a task of session {redact(task.session_id)}: {task.tool}")
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
    """What the event says: fields without a value are left out."""
    facts = {
        name: value for name in event.__struct_fields__ if (value := getattr(event, name)) not in ("", 0.0, None, {})
    }
    return facts if event.calls is None else facts | {"calls": event.calls}
