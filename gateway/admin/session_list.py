"""List live sessions: filtered, sorted, page by page, with totals.

A running gateway merges the sessions that the replicas hold in memory with those that none holds (`DetachedSessions`).
It reads a list of all sessions in order of id from the store instead. A command without a gateway reads every list from
the store.
"""

import asyncio
import heapq
import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, TypeVar

from msgspec.structs import replace

from gateway.admin.query_types import SHORTEST_PREFIX, Ambiguous, NoSuch, Page, SessionQuery, TooShort, UnknownHere
from gateway.admin.replica_queries import Replicas
from gateway.admin.report_types import SessionRow, detached, row_of
from gateway.admin.session_list_selection import Selection, SortKey, cursor_of
from gateway.admin.this_replica import Replica
from session_store import Backend, Session, SessionGone, SessionStore, StoreUnavailable
from transports.background_tasks import Tasks

SEARCHED: Final = 100_000
"""The most records that are read from the store. If there are more, sessions with the last ids are not found."""

_KEPT: Final = 5_000
"""The most records that are cached, the last used first."""

_FRESH_S: Final = 10.0
_REST: Final = 10
"""The pause after each step of a scan is this many times as long as the step. So calls of clients come first."""

_FIRST_S: Final = 0.05
"""Seconds that the first list waits for the first scan. This is enough for a small store."""

_DETACHED_AT_ONCE: Final = 100
_MOST_CANDIDATES: Final = 10
T = TypeVar("T")
_READ_AT_ONCE: Final = 1_000
_EVENTS_SEARCHED: Final = 2_000
_CORRELATION: Final = re.compile(r"[0-9a-f]{32}")
_IN_RECORDS: Final = ("id", "used", "created")
"""The sort orders for which the records in the store are enough."""


class DetachedSessions:
    """Find the sessions in the store that no running replica serves: their gateway has ended, and their client has not
    sent a request since. `known`: the sessions that the last scan of the store has found.

    Reading a thousand records takes a tenth of a second. So a background task scans the store in small steps, while
    operators list sessions.
    """

    def __init__(self, backend: Backend, replicas: Replicas) -> None:
        self._backend = backend
        self._replicas = replicas
        self._tasks = Tasks("detached sessions")
        self._tried_at = float("-inf")
        self._was_read = False
        self.known: list[Session] = []

    @property
    def is_reading(self) -> bool:
        """Return True until the first scan is complete: until then, sessions may be missing."""
        return self._backend.is_durable and not self._was_read

    async def read(self) -> list[Session]:
        """Return the records that the last scan has found; none if the store is not durable. If the last scan ended
        more than `_FRESH_S` seconds ago, start a new one in the background. Until the first scan is complete, wait for
        it briefly, and return what it has found so far."""
        if not self._backend.is_durable:
            return []  # what the store has, this process has opened
        if monotonic() - self._tried_at > _FRESH_S:
            reading = self._tasks.start("read", self._read)
            if self.is_reading:
                await asyncio.wait((reading,), timeout=_FIRST_S)
        return self.known

    async def _read(self) -> None:
        place, looked_at = "", 0
        found: list[Session] = []
        try:
            while looked_at < SEARCHED:
                began = monotonic()
                page = await self._backend.sessions.page(after=place, limit=_DETACHED_AT_ONCE)
                if page:
                    answers = await self._replicas.ask(Replica.serves, [session.id for session in page])
                    if answers.unanswered:  # what a silent replica serves is not detached
                        return
                    held = {session_id for some in answers.by.values() for session_id in some}
                    found += [session for session in page if session.id not in held]
                    found = heapq.nlargest(_KEPT, found, key=lambda session: session.used_at)
                    looked_at, place = looked_at + len(page), page[-1].id
                    if self.is_reading:
                        self.known = found
                if len(page) < _DETACHED_AT_ONCE:
                    break
                await asyncio.sleep((monotonic() - began) * _REST)
            self.known, self._was_read = found, True
        except StoreUnavailable:
            return  # the next reading finds out
        finally:
            self._tried_at = monotonic()


class SessionFinder:
    """Find a session by the beginning of its id."""

    def __init__(self, sessions: SessionStore, clock: Callable[[], float]) -> None:
        self.sessions = sessions
        self._clock = clock

    async def find(self, prefix: str) -> Session:
        """Return the one session whose id begins with `prefix`; if `prefix` is empty, the only live session. Raises
        `NoSuch` if there is none, `Ambiguous` if there are several, and `TooShort` if `prefix` is too short."""
        if prefix and len(prefix) < SHORTEST_PREFIX:
            raise TooShort("session")
        exact = await self.sessions.peek(prefix) if prefix else None
        if exact is not None:
            return exact
        page = await self.sessions.page(after=prefix, limit=_MOST_CANDIDATES + 1)
        found = [session for session in page if session.id.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if not found:
            why = f"no session begins with {prefix[:64]!r}: it has ended, or never existed"
            raise NoSuch(why if prefix else "no session is live")
        what = f"begins with {prefix!r}" if prefix else "is live"
        now = self._clock()
        raise Ambiguous(
            f"more than one session {what}: give more characters of the id",
            tuple(row_of(session, None, now) for session in found),
        )


class SessionList:
    """List the live sessions of all replicas, or of a store without a gateway."""

    def __init__(self, backend: Backend, replicas: Replicas, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._replicas = replicas
        self._clock = clock
        self._detached = DetachedSessions(backend, replicas)

    async def page(self, query: SessionQuery) -> Page:
        """Return the page of live sessions that the query asks for. Raises `StoreUnavailable` or `OperatorError`."""
        if _CORRELATION.fullmatch(query.query) and query.only == "all" and query.which is None:
            of_request = await self._of_request(query)
            if of_request:
                return Page(sessions=await self.rows(of_request[: query.limit]))
        if not self._replicas.are_known:
            return await self._stored(query)
        if not query.is_plain:
            return await self._together(query)
        # Totals are of all sessions: for them, a list of no rows is made.
        page, totals = await asyncio.gather(self._in_order(query), self._together(replace(query, limit=0, after="")))
        return replace(page, totals=totals.totals, unanswered=totals.unanswered, is_reading=totals.is_reading)

    async def _in_order(self, query: SessionQuery) -> Page:
        """Return a page of all live sessions in order of id, read from the store. The page has no totals."""
        # "~" stands behind every character of an id: the page begins behind all that start like that.
        after = f"{query.after.rpartition('~')[2]}~" if query.after else ""
        found = await self._backend.sessions.page(after=after, limit=query.limit + 1)
        more = cursor_of((0.0, found[query.limit - 1].id)) if len(found) > query.limit else ""
        return Page(sessions=await self.rows(found[: query.limit]), after=more)

    async def _stored(self, query: SessionQuery) -> Page:
        """Return a page for a command without a gateway: from the records in the store alone. Raises `UnknownHere` if
        the query needs facts that are not in the records."""
        which = query.which
        if query.order not in _IN_RECORDS or query.only != "all" or not (which is None or which.is_of_records):
            raise UnknownHere("the store does not record states, calls and failures: use --url with a running gateway")
        selection: Selection[Session] = Selection(query)
        place = ""
        while page := await self._backend.sessions.page(after=place, limit=_READ_AT_ONCE):
            for session in page:
                selection.add(session, detached(session), session)
            selection.first()
            place = page[-1].id
        chosen, more = _cut(selection.first(), query)
        return Page(sessions=await self.rows([session for _, session in chosen]), after=more, totals=selection.totals)

    async def _together(self, query: SessionQuery) -> Page:
        """Return a page for a gateway, with totals: the sessions that replicas serve, merged with those that no replica
        serves."""
        answers, unserved = await asyncio.gather(self._replicas.ask(Replica.listing, query), self._detached.read())
        pages = answers.by.values()
        selection: Selection[SessionRow] = Selection(query)
        now = self._clock()
        for session in unserved:
            selection.add(session, detached(session), row_of(session, None, now))
        found: dict[str, tuple[SortKey, SessionRow]] = {place[1]: (place, row) for place, row in selection.first()}
        found |= {row.id: (row.place, row.row) for page in pages for row in page.rows}
        totals = selection.totals
        for page in pages:
            totals.add(page.totals)
        chosen, more = _cut(sorted(found.values(), key=lambda one: one[0]), query)
        rows = await self._completed([(place[1], row) for place, row in chosen])
        is_reading = self._detached.is_reading
        return Page(sessions=rows, after=more, totals=totals, unanswered=answers.unanswered, is_reading=is_reading)

    async def _completed(self, chosen: Sequence[tuple[str, SessionRow]]) -> list[SessionRow]:
        """Return the rows with what only their replica and the state's store know: processes, refusals and the size of
        the state. `chosen`: the rows, each after its session's full id. Sessions that have ended are left out."""
        if not chosen:
            return []
        parts, sizes = await asyncio.gather(
            self._replicas.parts([session_id for session_id, _ in chosen]),
            asyncio.gather(*(self._size(session_id) for session_id, _ in chosen)),
        )
        rows = []
        for (session_id, row), size in zip(chosen, sizes, strict=True):
            part = parts.get(session_id)
            if part is not None:
                row = replace(row, state=part.state, processes=part.processes, refused=part.refused)
            if size is not None:
                rows.append(replace(row, state_bytes=size))
        return rows

    async def rows(self, found: Sequence[Session]) -> list[SessionRow]:
        """Return a row for each of these records, with the facts of the replica that serves the session and the size of
        its state."""
        parts = await self._replicas.parts([session.id for session in found])
        sizes = await asyncio.gather(*(self._size(session.id) for session in found))
        now = self._clock()
        return [
            row_of(session, parts.get(session.id), now, state_bytes=size or 0)
            for session, size in zip(found, sizes, strict=True)
        ]

    async def _size(self, session_id: str) -> int | None:
        """Return the size of a session's state in bytes; None if the session has ended."""
        try:
            return await self._backend.state.size(session_id)
        except SessionGone:
            return None

    async def _of_request(self, query: SessionQuery) -> list[Session]:
        """Return the records of the sessions to which a request belongs, if the query is the request's correlation id.
        Only a request that has failed, or that is in the audit trail, is found."""
        pages = (await self._replicas.ask(Replica.listing, query)).by.values()
        ids = [row.id for page in pages for row in page.rows]
        found = list(await asyncio.gather(*map(self._backend.sessions.peek, ids)))
        trail = await self._backend.audit.recent(_EVENTS_SEARCHED)
        wanted = {event.session for event in trail if event.session and event.correlation == query.query}
        for begins in sorted(wanted):
            page = await self._backend.sessions.page(after=begins, limit=_MOST_CANDIDATES)
            found += [session for session in page if session.id.startswith(begins)]
        return list({session.id: session for session in found if session is not None}.values())


def _cut(found: list[tuple[SortKey, T]], query: SessionQuery) -> tuple[list[tuple[SortKey, T]], str]:
    """Return the first of the found sessions, as many as a page has, and the cursor of the next page; an empty cursor
    if there is none."""
    if not query.limit or len(found) <= query.limit:
        return found[: query.limit], ""
    return found[: query.limit], cursor_of(found[query.limit - 1][0])
