"""The history of the figures, as operators are shown it: points of a chart, and who and what was used how much.

Pure: the records come from the store.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from gateway.observability.figures import FigureRecord, ToolFigures, merged, read_record
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
    """Who or what was used in that time, the most calls first."""
    record = merged(read_record(one.body) for one in records)
    if by in ("principal", "client"):
        who = record.principals if by == "principal" else record.clients
        rows = [
            UsageRow(
                name=one.name,
                calls=one.calls,
                failed=one.failed,
                sessions=one.sessions,
                per_min=_per_min(one.calls, length_s),
            )
            for one in who
        ]
    else:
        tools = record.tools
        if by == "server":
            names = {row.server for row in tools}
            tools = [_together(name, "", (row for row in tools if row.server == name)) for name in sorted(names)]
        rows = [_tool_row(row, length_s) for row in tools]
    return sorted(rows, key=lambda row: (-row.calls, -row.sessions, row.server, row.name))


def _tool_row(row: ToolFigures, length_s: float) -> UsageRow:
    return UsageRow(
        name=row.name,
        server=row.server,
        calls=row.calls,
        failed=row.failed,
        per_min=_per_min(row.calls, length_s),
        mean_s=round(row.total_s / row.calls, 6) if row.calls else 0.0,
        p50_s=_quantile(row, 0.5),
        p99_s=_quantile(row, 0.99),
    )


def _per_min(calls: int, length_s: float) -> float:
    return round(calls * 60 / length_s, 2)
