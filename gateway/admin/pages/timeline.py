"""Draw the timeline of a session, and explain its failures and delays. Pure.

A server whose sandbox refuses a file often answers with a vague error, and the start of a process makes a call slow. So
an entry gets notes on such events near to it in time.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from gateway.admin.formatting import took
from gateway.admin.report_types import SessionRow, TimelineRow
from gateway.observability.observed_call import Failure
from gateway.sandbox.refusal_reports import RefusedRow

_BEFORE_S: Final = 10.0
_AFTER_S: Final = 1.0
"""The most seconds between a failure and a later report of the refusal that has caused it."""

_MOST: Final = 3
_WIDTH: Final = 1_000
_HEIGHT: Final = 16
_THINNEST: Final = 3.0
"""The smallest width of an entry in the picture."""

_MOST_LANES: Final = 12
_NAMES: Final = {"session": "Session", "move": "Moves", "question": "Questions", "task": "Tasks", "refusal": "Refused"}
_ORDER: Final = ("session", "move", "server", "call", "question", "task", "refusal")
_SHORT_S: Final = 0.05
_ROUNDED_S: Final = 0.01
"""The tolerance in seconds when times are compared: they are rounded, and measured by different parts of the
gateway."""


def explained(row: SessionRow) -> list[tuple[Failure, list[RefusedRow]]]:
    """Return the session's failed calls in order, each with the sandbox's refusals that may be its cause. Equal
    refusals are stored with the time of the last one only, so an older failure may lack its refusal."""
    return [(one, refused_near(one.server, one.at, one.at, row.refused)) for one in row.failures]


def refused_near(server: str, begin: float, end: float, refused: Sequence[RefusedRow]) -> list[RefusedRow]:
    """Return the refusals of the server's sandbox that may explain a failure between the Unix times `begin` and `end`:
    those from `_BEFORE_S` seconds before `begin` to `_AFTER_S` seconds after `end`. At most `_MOST` are returned, the
    nearest to `end` first."""
    near = [one for one in refused if one.server == server and begin - _BEFORE_S <= one.at <= end + _AFTER_S]
    return sorted(near, key=lambda one: abs(end - one.at))[:_MOST]


class Lane(NamedTuple):
    """Timeline entries of one kind, in order of time, drawn as one row. `begin` and `end` are the Unix times of the
    left and right edge."""

    name: str
    rows: Sequence[TimelineRow]
    begin: float
    end: float

    @property
    def svg(self) -> Markup:
        failed = sum(row.count for row in self.rows if row.has_failed)
        words = f"{self.name}: {sum(row.count for row in self.rows)}, {failed} failed"
        return Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>').format(
            words, _WIDTH, _HEIGHT, Markup("").join(self._mark(row) for row in self.rows)
        )

    def _mark(self, row: TimelineRow) -> Markup:
        end = max(row.until, row.at + (row.took_s if row.count == 1 else 0.0))
        scale = _WIDTH / (self.end - self.begin) if self.end > self.begin else 0.0
        width = min(max((end - row.at) * scale, _THINNEST), _WIDTH)
        left = min((row.at - self.begin) * scale, _WIDTH - width)
        kind = f"mark {'failed' if row.has_failed else row.kind}{' many' if row.count > 1 else ''}"
        many = f" ({row.count} times)" if row.count > 1 else ""
        words = " ".join(filter(None, (row.name, row.outcome, took(row.took_s) if row.took_s else "", row.why)))
        return Markup(
            f'<rect class="{kind}" x="{left:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}">'
            f"<title>{escape(words + many)}</title></rect>"
        )


class Picture(NamedTuple):
    """A drawn timeline: its lanes, and the Unix times of its left and right edge."""

    lanes: Sequence[Lane]
    begin: float
    end: float


def picture_of(rows: Iterable[TimelineRow]) -> Picture | None:
    """Arrange the entries of a timeline in lanes. Return None if there are no entries."""
    rows = sorted(rows, key=lambda row: row.at)
    if not rows:
        return None
    begin, end = rows[0].at, max(max(row.until, row.at + row.took_s if row.count == 1 else 0.0) for row in rows)
    lanes: dict[tuple[int, str], list[TimelineRow]] = {}
    for row in rows:
        lanes.setdefault((_ORDER.index(row.kind), _lane(row)), []).append(row)
    shown = [Lane(name, some, begin, end) for (_, name), some in sorted(lanes.items())[:_MOST_LANES]]
    return Picture(shown, begin, end)


def _lane(row: TimelineRow) -> str:
    if row.kind in ("call", "server"):
        return f"{row.server or 'gateway'} {'calls' if row.kind == 'call' else 'starts'}"
    return _NAMES[row.kind]


def notes_of(rows: Sequence[TimelineRow], refused: Sequence[RefusedRow]) -> list[list[str]]:
    """Return for each entry of a timeline the notes that explain its failure or delay; an empty list if there are none.
    `refused`: what the sandboxes of the session have refused."""
    starts = [row for row in rows if row.kind == "server" and row.name == "started"]
    return [_notes(row, starts, refused) for row in rows]


def _notes(row: TimelineRow, starts: Sequence[TimelineRow], refused: Sequence[RefusedRow]) -> list[str]:
    if row.kind != "call" or row.count != 1:
        return []
    found = []
    for one in refused_near(row.server, row.at, row.until, refused) if row.has_failed else ():
        said = f"its sandbox refused {one.kind} {one.what} just before"
        found.append(f"{said}: {one.allows} allows it" if one.allows else said)
    return [*found, *filter(None, (_waited(row, start) for start in starts if start.server == row.server))]


def _waited(call: TimelineRow, start: TimelineRow) -> str:
    """Return a note on how long the call waited for the start of its server; empty if it did not wait."""
    ready = start.at + start.took_s
    if call.took_s < _SHORT_S or not call.at - _ROUNDED_S <= ready <= call.until + _ROUNDED_S:
        return ""
    if start.why:  # without a handshake, nobody knows when the process was ready: its first answer came with the call's
        return f"the first answer of a new process: {took(call.took_s)} includes its start"
    waited = min(ready - call.at, start.took_s)
    return f"waited {took(waited)} for the start of {call.server}" if waited >= _SHORT_S else ""
