"""What this replica knows of the sessions that it serves: as lists of them are made, and of those that are watched."""

from collections.abc import Callable
from time import time
from typing import Final

import msgspec

from gateway.admin.operators import SessionQuery
from gateway.admin.reports import FrameQuery, FrameReport, SessionPart, SessionRow, SessionState, SessionTotals, row_of
from gateway.admin.session_selection import LiveFacts, Place, Selection
from gateway.calls.lifecycles import LiveState
from gateway.calls.live_session import LiveSession, LiveSessions
from gateway.calls.session_frames import SeenFrame, StderrLine
from session_store.metadata import scrubbed_text
from transports.turns import SCANNED_AT_ONCE, others_first, slices

__all__ = [
    "HeldPage",
    "HeldRow",
    "held_page",
    "in_flight_of",
    "part_of",
    "report_of",
    "seen_of",
    "state_of",
    "suspended_of",
]

_MOST_BODIES: Final = 256 << 10
"""Of the bodies in one report: it travels over the bus of the store."""


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


def report_of(live: LiveSession) -> FrameReport:
    """Who watches a session, and for how long."""
    seen = live.frames
    if seen is None:
        return FrameReport()
    return FrameReport(watched=True, by=seen.by, ends_in_s=round(max(0.0, seen.ends_at - time()), 1))


def seen_of(live: LiveSession, query: FrameQuery) -> FrameReport:
    """What was seen of a session."""
    report = report_of(live)
    if live.frames is None:
        return msgspec.structs.replace(report, lines=_output_tail(live)[-query.lines :] if query.lines else [])
    frames, missed_frames = live.frames.frames.behind(query.after_frame, query.frames)
    lines, missed_lines = live.frames.lines.behind(query.after_line, query.lines)
    return msgspec.structs.replace(
        report,
        frames=_fitting(frames, newest=not query.after_frame),
        missed_frames=missed_frames,
        lines=lines,
        missed_lines=missed_lines,
    )


def _output_tail(live: LiveSession) -> list[StderrLine]:
    """The last lines of the session's servers, which are known of every session. Of a process that has ended fewer are
    kept."""
    found: list[StderrLine] = []
    for conversation in live.conversations.values():
        link = conversation.link
        words = (link is not None and link.stderr_tail()) or conversation.output_tail
        found += [StderrLine(number=0, server=conversation.name, text=scrubbed_text(line)) for line in words]
    return found


def _fitting(frames: list[SeenFrame], *, newest: bool) -> list[SeenFrame]:
    """As many of the messages as one report may have: the newest, or the oldest."""
    left = _MOST_BODIES
    found: list[SeenFrame] = []
    for frame in reversed(frames) if newest else frames:
        left -= len(frame.body)
        if left < 0 and found:
            break
        found.append(frame)
    return found[::-1] if newest else found
