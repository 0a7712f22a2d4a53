"""The sessions that this replica serves, as lists of them are made."""

from collections.abc import Callable

import msgspec

from gateway.admin.operators import SessionQuery
from gateway.admin.reports import SessionPart, SessionRow, SessionState, SessionTotals, row_of
from gateway.admin.session_selection import LiveFacts, Place, Selection
from gateway.calls.lifecycles import LiveState
from gateway.calls.live_session import LiveSession, LiveSessions
from transports.turns import SCANNED_AT_ONCE, others_first, slices

__all__ = ["HeldPage", "HeldRow", "held_page", "in_flight_of", "part_of", "state_of", "suspended_of"]


class HeldRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session and where it stands in the order of the list. `id` is the full id."""

    id: str
    place: Place
    row: SessionRow


class HeldPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first sessions of a list that one replica serves, and the totals of all of its sessions that match."""

    rows: list[HeldRow] = []
    totals: SessionTotals = msgspec.field(default_factory=SessionTotals)


async def held_page(live: LiveSessions, query: SessionQuery, now: Callable[[], float]) -> HeldPage:
    """The part of this replica. The sessions are looked at in steps, so that calls do not wait for it."""
    selection: Selection[LiveSession] = Selection(query)
    for some in slices(list(live), SCANNED_AT_ONCE // 2):
        for one in some:
            if not one.ended:
                selection.add(one.session, _facts(one), one)
        selection.first()
        await others_first()
    rows = [
        HeldRow(id=one.session.id, place=place, row=row_of(one.session, part_of(one), now()))
        for place, one in (selection.first() if query.limit else ())
    ]
    return HeldPage(rows=rows, totals=selection.totals)


def _facts(live: LiveSession) -> LiveFacts:
    failures = live.failures
    return LiveFacts(
        state_of(live),
        live.calls,
        live.failed,
        len(live.exchanges),
        failures[-1].at if failures else 0.0,
        [name for name, *_ in live.conversations] if live.conversations else (),
        [failure.correlation for failure in failures],
    )


def state_of(live: LiveSession) -> SessionState:
    """`waiting`: a call waits for its client. `draining`: its replica hands it over."""
    if live.state is LiveState.DRAINING:
        return "draining"
    if live.has_suspended:
        return "waiting"
    return "busy" if live.exchanges else "idle"


def suspended_of(live: LiveSession) -> int:
    """Its calls that wait for answers of their client. Calls that have ended are remembered by name for a while."""
    return sum(exchange.is_suspended for exchange in live.suspended.values())


def in_flight_of(live: LiveSession) -> int:
    """Its calls in flight without those that were moved to a child session, which has them too."""
    return sum(exchange.live is live for exchange in live.exchanges)


def part_of(live: LiveSession) -> SessionPart:
    """What this replica knows of a session beside its record, without its processes."""
    return SessionPart(
        id=live.session.id,
        state=state_of(live),
        calls=live.calls,
        failed=live.failed,
        in_flight=len(live.exchanges),
        parked=suspended_of(live),
        streams=live.open_streams,
        servers=sorted({name for name, *_ in live.conversations}),
        failures=[*reversed(live.failures)],
    )
