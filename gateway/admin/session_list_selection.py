"""Select sessions for a list: the first ones that match a query, in its order, and totals of all that match.

Each replica selects among the sessions that it serves. The replica that the operator asked merges these selections. So
a list needs the memory of one page, however many sessions there are.
"""

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from gateway.admin.query_types import OperatorError, SessionFilter, SessionQuery, has_words
from gateway.admin.report_types import (
    SessionPart,
    SessionRow,
    SessionState,
    SessionTotals,
    row_of,
)
from gateway.calls.lifecycles import LiveState
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.config.endpoint_paths import path_of
from gateway.policy.memory_admission import ServerMemory
from session_store import Session
from session_store.session import redact
from transports.work_steps import SCANNED_AT_ONCE, let_others_run, slices

T = TypeVar("T")
SortKey = tuple[float, str]
"""The place of a session in a list: the value that it is sorted by, lowest first, and its id."""


class Selection(Generic[T]):
    """Select the sessions of one page from all those that are passed to `add`. `totals`: the totals of all sessions
    that match the query. `query.after`: the cursor at which the page begins (`cursor_of`).

    Raises:
        OperatorError: `query.after` is not a cursor.
    """

    def __init__(self, query: SessionQuery) -> None:
        self.totals = SessionTotals()
        self._query = query
        self._after = _parsed(query.after)
        self._found: list[tuple[SortKey, T]] = []

    def add(self, session: Session, part: SessionPart, item: T) -> None:
        """Count a session in the totals if it matches the query, and select it if it also comes after the cursor.
        `part`: the facts about it that are not in its record. `item`: what `first` returns for it. Add each session
        only once."""
        query = self._query
        if query.only == "failing" and not part.failed:
            return
        if query.only == "busy" and not part.in_flight and part.state != "waiting":
            return
        if query.which is not None and not fits(query.which, session, part):
            return
        is_of_request = any(failure.correlation == query.query for failure in part.failures)
        if query.query and not is_of_request and not matches(session, query.query):
            return
        self.totals.count(part)
        place = (_key(query.order, session, part), session.id)
        if self._after is None or place > self._after:
            self._found.append((place, item))

    def first(self) -> list[tuple[SortKey, T]]:
        """Return the first of the selected sessions, each with its sort key: as many as a page has, and one more to
        show that there is a next page. Drop all others: callers with many sessions call this regularly to save
        memory."""
        self._found = heapq.nsmallest(self._query.limit + 1, self._found, key=lambda found: found[0])
        return self._found


def fits(which: SessionFilter, session: Session, part: SessionPart) -> bool:
    """Return True if a session matches the filter `which`. `part`: the facts about the session that are not in its
    record."""
    return (
        which.principal in ("", str(session.principal))
        and which.client in ("", session.client.name)
        and which.workspace in ("", session.context.workspace)
        and which.state in ("", part.state)
        and (not which.failing or part.failed > 0)
        and (not which.server or _uses(which.server, session, part))
    )


def _uses(server: str, session: Session, part: SessionPart) -> bool:
    return (
        session.endpoint == path_of(server)
        or server in part.servers
        or any(link.rpartition("/")[0] == server for link in session.links)
    )


def matches(session: Session, query: str) -> bool:
    """Return True if the facts in a session's record have every word of `query`, taken together, or if its id begins
    with `query`. True for an empty query."""
    if not query or session.id.startswith(query):
        return True
    context = session.context
    facts = (
        *(session.id, str(session.principal), session.client.name, context.workspace, session.endpoint, session.era),
        *(context.trust, session.owner, *session.links),
    )
    return has_words(query, facts)


def _key(sort: str, session: Session, part: SessionPart) -> float:
    values = {
        "used": session.used_at,
        "created": session.created_at,
        "calls": part.calls,
        "failures": part.failed,
        "last_failure": part.failed_at,
        "in_flight": part.in_flight,
        "memory": part.memory_bytes,
    }
    return -values[sort] if sort in values else 0.0


def cursor_of(place: SortKey) -> str:
    """Return the cursor of the page that begins after the session with the sort key `place`. It is shown to operators,
    so it does not contain the whole id."""
    return f"{place[0]!r}~{redact(place[1])}" if place[0] else redact(place[1])


def _parsed(after: str) -> SortKey | None:
    if not after:
        return None
    number, _, begins = after.rpartition("~")
    try:
        # "~" stands behind every character of an id: the page begins behind all that start like that.
        return (float(number) if number else 0.0, f"{begins}~")
    except ValueError:
        raise OperatorError("after: give the `after` of the previous page, in the same order") from None


class ListingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a replica's list. `id`: the full id, which `row` lacks. `place`: the sort key, by which the lists of
    all replicas are merged."""

    id: str
    place: SortKey
    row: SessionRow


class ListingPage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one replica to a query for sessions: the rows of its first matching sessions, and the totals of all
    its matching sessions."""

    rows: list[ListingRow] = []
    totals: SessionTotals = msgspec.field(default_factory=SessionTotals)


async def listing_page(
    live: LiveSessions, query: SessionQuery, now: Callable[[], float], memory: ServerMemory
) -> ListingPage:
    """Return the first of this replica's sessions that match the query, as many as a page needs, and the totals of all
    that match. Work in steps, so that calls do not wait."""
    selection: Selection[LiveSession] = Selection(query)
    for some in slices(list(live), SCANNED_AT_ONCE // 2):
        for one in some:
            if not one.ended:
                selection.add(one.session, part_of(one, memory), one)
        selection.first()
        await let_others_run()
    rows = [
        ListingRow(id=one.session.id, place=place, row=row_of(one.session, part_of(one, memory), now()))
        for place, one in (selection.first() if query.limit else ())
    ]
    return ListingPage(rows=rows, totals=selection.totals)


def _state_of(live: LiveSession) -> SessionState:
    if live.state is LiveState.DRAINING:
        return "draining"
    if live.has_suspended:
        return "waiting"
    return "busy" if live.exchanges else "idle"


def suspended_of(live: LiveSession) -> int:
    """Count the session's calls that wait for answers of their client. `live.suspended` also has calls that have
    ended."""
    return sum(exchange.is_suspended for exchange in live.suspended.values())


def part_of(live: LiveSession, memory: ServerMemory) -> SessionPart:
    """Return the facts about a live session that are not in its record. `processes` and `refused` are left empty."""
    return SessionPart(
        id=live.session.id,
        state=_state_of(live),
        calls=live.calls,
        failed=live.failed,
        in_flight=len(live.exchanges),
        parked=suspended_of(live),
        streams=live.open_streams,
        memory_bytes=memory.of_session(live.session.id),
        servers=sorted({each.name for each in live.every_conversation()}),
        failures=[*reversed(live.failures)],
    )
