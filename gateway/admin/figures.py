"""The history of the figures, as operators are shown it: points of a chart, and who and what was used how much.

Pure: the records come from the store.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.observability.figures import FigureRecord, ToolFigures, WhoFigures, merged, read_record
from gateway.observability.metrics import BUCKETS_S, quantile
from session_store import HistoryRecord

__all__ = ["RANGES", "HistoryPoint", "HistoryView", "Range", "UsageBy", "UsageRow", "points_of", "usage_of"]

Range = Literal["5m", "15m", "1h", "6h", "24h"]

RANGES: Final[dict[Range, tuple[int, int]]] = {
    "5m": (300, 60),
    "15m": (900, 60),
    "1h": (3_600, 60),
    "6h": (21_600, 600),
    "24h": (86_400, 600),
}
"""What an operator can look back at: how long, and the length of the records that it is made of, in seconds."""

UsageBy = Literal["tool", "server", "principal", "client"]


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step: when it began (Unix time), calls that ended in it, how many failed, and their durations in seconds.
    `sessions`: live at its end on all replicas."""

    at: int
    calls: int = 0
    failed: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    sessions: int = 0


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the history: its points in order of time, `step_s` apart. The last one is not over yet."""

    range: Range
    step_s: int
    points: list[HistoryPoint]


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Use in a range. `name` is the tool or the method, the principal or the client; `server` is empty for those two.
    Durations are in seconds and known for tools and servers, `sessions` (opened in the range) for principals and
    clients."""

    name: str
    server: str = ""
    calls: int = 0
    failed: int = 0
    per_min: float = 0.0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    sessions: int = 0


def points_of(
    records: Iterable[HistoryRecord], steps: Sequence[int], *, server: str = "", tool: str = ""
) -> list[HistoryPoint]:
    """One point for each of these times; of one server, or of one tool of it, where that is given."""
    found: dict[int, list[FigureRecord]] = {at: [] for at in steps}
    for record in records:
        if record.at in found:
            found[record.at].append(read_record(record.body))
    return [_point(at, merged(some), server, tool) for at, some in found.items()]


def _point(at: int, record: FigureRecord, server: str, tool: str) -> HistoryPoint:
    wanted = [row for row in record.tools if server in ("", row.server) and tool in ("", row.name)]
    total = _together("", "", wanted)
    return HistoryPoint(
        at=at,
        calls=total.calls,
        failed=total.failed,
        p50_s=_quantile(total, 0.5),
        p99_s=_quantile(total, 0.99),
        sessions=record.live,
    )


def _together(server: str, name: str, rows: Iterable[ToolFigures]) -> ToolFigures:
    total = ToolFigures(server, name, counts=[])
    for row in rows:
        total.add(row)
    return total


def _quantile(figures: ToolFigures, q: float) -> float:
    counts = figures.counts + [0] * (len(BUCKETS_S) + 1 - len(figures.counts))
    # A bucket is wide. No call took longer than the longest, and of a single one the duration is known.
    found = quantile(counts, q)
    most = figures.longest_s or figures.total_s or found
    return round(figures.total_s if figures.calls == 1 else min(found, most), 6)


def usage_of(records: Iterable[HistoryRecord], by: UsageBy, length_s: float) -> list[UsageRow]:
    """List who or what was used in that time, the most calls first."""
    record = merged(read_record(one.body) for one in records)
    if by in ("principal", "client"):
        who = record.principals if by == "principal" else record.clients
        rows = [_row(one, length_s, sessions=one.sessions) for one in who]
    else:
        tools = record.tools
        if by == "server":
            names = sorted({row.server for row in tools})
            tools = [_together(name, "", (row for row in tools if row.server == name)) for name in names]
        rows = [
            _row(
                one,
                length_s,
                server=one.server,
                mean_s=round(one.total_s / one.calls, 6) if one.calls else 0.0,
                p50_s=_quantile(one, 0.5),
                p99_s=_quantile(one, 0.99),
            )
            for one in tools
        ]
    return sorted(rows, key=lambda row: (-row.calls, -row.sessions, row.server, row.name))


def _row(used: ToolFigures | WhoFigures, length_s: float, **more: Any) -> UsageRow:
    per_min = round(used.calls * 60 / length_s, 2)
    return UsageRow(name=used.name, calls=used.calls, failed=used.failed, per_min=per_min, **more)
