"""The timeline of a session as a picture: a lane for each kind of thing, time from left to right. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import Markup, escape

from gateway.admin.formatting import took
from gateway.admin.reports import TimelineRow

__all__ = ["Lane", "Picture", "picture_of"]

_WIDTH: Final = 1_000
_HEIGHT: Final = 16
_THINNEST: Final = 3.0
"""What took too short a time to be seen is drawn this wide."""

_MOST_LANES: Final = 12
_NAMES: Final = {"session": "Session", "move": "Moves", "question": "Questions", "task": "Tasks", "refusal": "Refused"}
_ORDER: Final = ("session", "move", "server", "call", "question", "task", "refusal")


class Lane:
    """Things of one kind in order of time."""

    def __init__(self, name: str, rows: Sequence[TimelineRow], begin: float, end: float) -> None:
        self.name = name
        self._rows = rows
        self._begin = begin
        self._scale = _WIDTH / (end - begin) if end > begin else 0.0

    @property
    def svg(self) -> Markup:
        """For a page."""
        failed = sum(row.count for row in self._rows if row.has_failed)
        words = f"{self.name}: {sum(row.count for row in self._rows)}, {failed} failed"
        return Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>').format(
            words, _WIDTH, _HEIGHT, Markup("").join(self._mark(row) for row in self._rows)
        )

    def _mark(self, row: TimelineRow) -> Markup:
        end = max(row.until, row.at + (row.took_s if row.count == 1 else 0.0))
        width = min(max((end - row.at) * self._scale, _THINNEST), _WIDTH)
        left = min((row.at - self._begin) * self._scale, _WIDTH - width)
        kind = f"mark {'failed' if row.has_failed else row.kind}{' many' if row.count > 1 else ''}"
        many = f" ({row.count} times)" if row.count > 1 else ""
        words = " ".join(filter(None, (row.name, row.outcome, took(row.took_s) if row.took_s else "", row.why)))
        return Markup(
            f'<rect class="{kind}" x="{left:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}">'
            f"<title>{escape(words + many)}</title></rect>"
        )


class Picture:
    """The lanes, and the times of their left and right edge (Unix time)."""

    def __init__(self, lanes: Sequence[Lane], begin: float, end: float) -> None:
        self.lanes = lanes
        self.begin = begin
        self.end = end


def picture_of(rows: Iterable[TimelineRow]) -> Picture | None:
    """None: nothing has happened."""
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
