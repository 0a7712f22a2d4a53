"""Read for operators the timelines of sessions, the history of calls, and the state of servers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from gateway.admin.query_types import Ambiguous, NoSuch, PastQuery
from gateway.admin.replica_queries import Replicas
from gateway.admin.report_types import (
    MOST_DEAD,
    RANGES,
    HistoryPoint,
    HistoryView,
    Range,
    ReportedServer,
    ServerPart,
    ServerRow,
    SessionTimeline,
    TimelineRow,
    UsageBy,
    UsageRow,
)
from gateway.admin.session_list import SessionFinder
from gateway.admin.this_replica import Replica
from gateway.observability.metrics import BUCKETS_S, quantile
from gateway.observability.timelines import head_of
from gateway.observability.usage_counts import FigureRecord, ToolFigures, WhoFigures, read_record
from gateway.observability.usage_counts import merged as figures_together
from session_store import Backend, HistoryRecord, Session, TimelineHead
from session_store.ports.timelines import MAX_SESSIONS, merged
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.work_steps import let_others_run, slices

_READ_AT_ONCE: Final = 2_000
"""The most heads of timelines that a search reads at once."""

MOST_SEARCHED: Final = 500
"""The most timelines of which a search reads the entries, each up to `MAX_TIMELINE_BYTES`."""

_SEARCHED_AT_ONCE: Final = 32

_STATES: Final = ("ok", "starting", "failing")
"""States of a server, the worst last. A server has the worst state that any replica reports."""

_SUMMED: Final = ("processes", "memory_bytes", "links", "in_flight", "started", "failed_starts")


class ActivityQueries:
    """Answer operators' questions about the past: timelines of sessions, history of calls, and the states of servers.
    Read what replicas have written to the store, and get from replicas what is not written yet."""

    def __init__(self, backend: Backend, replicas: Replicas, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._replicas = replicas
        self._clock = clock
        self._finder = SessionFinder(backend.sessions, clock)
        self._readings = Tasks("history")

    # -- timelines

    async def timeline(self, prefix: str) -> SessionTimeline:
        """Return the timeline of the session whose id begins with `prefix`, if the session is live or has ended in the
        last day. Raises `NoSuch`, `Ambiguous` or `TooShort`."""
        name, session = await self._named(prefix)
        stored = await self._backend.timelines.read(name)
        head = None if stored is None else stored.head
        entries = [] if stored is None else stored.entries
        for part in (await self._replicas.ask(Replica.unwritten, name)).by.values():
            if part is not None:
                head = merged(head, part, self._clock())
                entries = [*entries, *part.entries]
        if session is not None:
            counts = {} if head is None else {"calls": head.calls, "failed": head.failed}
            head = msgspec.structs.replace(head_of(name, session), updated_at=session.used_at, **counts)
        if head is None:
            raise NoSuch(f"no session of the last day begins with {prefix[:64]!r}")
        # An entry that is written at this moment may have come from both.
        entries = sorted(dict.fromkeys(entries), key=lambda one: one.at)
        return SessionTimeline(head=head, entries=[TimelineRow(**msgspec.structs.asdict(one)) for one in entries])

    async def past_sessions(self, query: PastQuery) -> list[TimelineHead]:
        """Return the sessions of the last day, live or ended, that match the query; the last used ones first."""
        await self._replicas.ask(Replica.write_activity)
        # Where nearly all match, few have to be read. One written meanwhile moves to the front: it is met twice.
        found: dict[str, TimelineHead] = {}
        searched: set[str] = set()
        read = 0
        while len(found) < query.limit and len(searched) < MOST_SEARCHED and read < MAX_SESSIONS:
            size = min(max(query.limit, read), _READ_AT_ONCE)
            heads = await self._backend.timelines.newest(size, skip=read)
            matching = [head for head in heads if query.matches(head) and head.session not in found]
            if query.is_of_entries:
                matching = [head for head in matching if head.session not in searched][: MOST_SEARCHED - len(searched)]
                searched.update(head.session for head in matching)
                matching = await self._with_entry(query, matching)
            found.update((head.session, head) for head in matching)
            read += size
            if len(heads) < size // 2:  # the last ones; a few may have expired among others
                break
        return list(found.values())[: query.limit]

    async def _with_entry(self, query: PastQuery, heads: Sequence[TimelineHead]) -> list[TimelineHead]:
        found: list[TimelineHead] = []
        for some in slices(heads, _SEARCHED_AT_ONCE):
            timelines = await asyncio.gather(*(self._backend.timelines.read(head.session) for head in some))
            pairs = zip(some, timelines, strict=True)
            found += [head for head, one in pairs if one is not None and query.has_entry(one.entries)]
            await let_others_run()
        return found

    async def _named(self, prefix: str) -> tuple[str, Session | None]:
        """Find the one timeline whose session's id begins with `prefix`. Return the timeline's name, and the record of
        the session if it is live; otherwise None in place of the record. Raises `NoSuch`, `Ambiguous` or `TooShort`."""
        names: set[str] = set()
        session = None
        try:
            session = await self._finder.find(prefix)
            names.add(redact(session.id))
        except NoSuch:
            if not prefix:
                raise
        if prefix:
            names.update(await self._backend.timelines.names(redact(prefix)))
        if len(names) > 1:
            raise Ambiguous(f"more than one session begins with {prefix!r}: give more characters of the id")
        # If it has just ended, its timeline is not in the store yet.
        return (names or {redact(prefix)}).pop(), session

    # -- the history

    async def history(self, over: Range = "15m", server: str = "", tool: str = "") -> HistoryView:
        """Return calls, failures, durations and live sessions in the range `over`, one point for each step. `server`
        and `tool`: count only the calls of this server and tool; empty: all calls."""
        records, steps = await self._records(over)
        _, step_s = RANGES[over]
        return HistoryView(range=over, step_s=step_s, points=points_of(records, steps, server=server, tool=tool))

    async def usage(self, by: UsageBy = "tool", over: Range = "15m") -> list[UsageRow]:
        """Return how much each tool, server, principal or client (`by` says which) was used in the range `over`; those
        with the most calls first."""
        records, _ = await self._records(over)
        return usage_of(records, by, RANGES[over][0])

    async def _records(self, over: Range) -> tuple[list[HistoryRecord], range]:
        """Return the counts of all replicas in the range `over`, and the Unix times at which its steps begin.
        Concurrent callers with the same range share one read of the store."""
        return await self._readings.share(over, lambda: self._read(over))

    async def _read(self, over: Range) -> tuple[list[HistoryRecord], range]:
        await self._replicas.ask(Replica.write_activity)
        length_s, step_s = RANGES[over]
        until = int(self._clock()) // step_s * step_s + step_s
        steps = range(until - length_s, until, step_s)
        return await self._backend.history.read(step_s, steps.start, until), steps

    # -- servers

    async def servers(self, over: Range = "15m") -> list[ServerRow]:
        """Return a row for each configured server, in order of name: its state on all replicas together, and its calls
        in the range `over`. Raises `UnknownHere` if there is no running gateway."""
        self._replicas.require("the store does not record which servers run: use --url with a running gateway")
        answers = await self._replicas.ask(Replica.servers)
        parts = [part for some in answers.by.values() for part in some]
        records, _ = await self._records(over)
        by_tool = usage_of(records, "tool", RANGES[over][0])
        by_server = {row.server: row for row in usage_of(records, "server", RANGES[over][0])}
        # The parts of all replicas become one row for each server, in order of name, with the server's calls in the
        # range.
        of: dict[str, list[ServerPart]] = {}
        for part in parts:
            of.setdefault(part.server, []).append(part)
        return [
            _server_row(some, by_server.get(name), [row for row in by_tool if row.server == name])
            for name, some in sorted(of.items())
        ]


def points_of(
    records: Iterable[HistoryRecord], steps: Sequence[int], *, server: str = "", tool: str = ""
) -> list[HistoryPoint]:
    """Return one point of the history for each step; `steps` are the Unix times at which the steps begin. `server` and
    `tool`: count only the calls of this server and tool; empty: all calls."""
    found: dict[int, list[FigureRecord]] = {at: [] for at in steps}
    for record in records:
        if record.at in found:
            found[record.at].append(read_record(record.body))
    return [_point(at, figures_together(some), server, tool) for at, some in found.items()]


def _point(at: int, record: FigureRecord, server: str, tool: str) -> HistoryPoint:
    wanted = [row for row in record.tools if server in ("", row.server) and tool in ("", row.name)]
    total = _together("", wanted)
    return HistoryPoint(
        at=at,
        calls=total.calls,
        failed=total.failed,
        p50_s=_quantile(total, 0.5),
        p99_s=_quantile(total, 0.99),
        sessions=record.live,
    )


def _together(server: str, rows: Iterable[ToolFigures]) -> ToolFigures:
    total = ToolFigures(server, "", counts=[])
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
    """Return how much each tool, server, principal or client (`by` says which) was used, those with the most calls
    first. `length_s`: the seconds that the records cover, for calls per minute."""
    record = figures_together(read_record(one.body) for one in records)
    if by in ("principal", "client"):
        who = record.principals if by == "principal" else record.clients
        rows = [_row(one, length_s, sessions=one.sessions) for one in who]
    else:
        tools = record.tools
        if by == "server":
            names = sorted({row.server for row in tools})
            tools = [_together(name, (row for row in tools if row.server == name)) for name in names]
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


def _server_row(parts: Sequence[ServerPart], used: UsageRow | None, usage: list[UsageRow]) -> ServerRow:
    worst = max(parts, key=lambda part: _STATES.index(part.state) if part.state in _STATES else 0)
    latest = max(parts, key=lambda part: part.start_failed_at)
    restarts: Counter[str] = Counter()
    for part in parts:
        restarts.update(part.restarts)
    times = [each for part in parts for each in part.start_times_s]
    used = used or UsageRow(name="")
    facts = {name: getattr(worst, name) for name in ReportedServer.__struct_fields__}
    facts |= {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
    facts |= {
        "tools": max(part.tools for part in parts),
        "start_failure": latest.start_failure,
        "start_failed_at": latest.start_failed_at,
        "restarts": dict(restarts),
        "died": [dead for part in parts for dead in part.died][-MOST_DEAD:],
    }
    return ServerRow(
        **facts,
        states=dict(Counter(part.state for part in parts)),
        start_p50_s=round(median(times), 3) if times else 0.0,
        start_max_s=max(times, default=0.0),
        calls=used.calls,
        failed=used.failed,
        p50_s=used.p50_s,
        p99_s=used.p99_s,
        usage=usage,
    )
