"""What operators find of the last day, and the history: records of all replicas put together."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.admin import timelines_and_history
from gateway.admin.query_types import PastQuery
from gateway.admin.replica_queries import Replicas
from gateway.admin.timelines_and_history import ActivityQueries, points_of, usage_of
from gateway.observability.metrics import BUCKETS_S
from gateway.observability.usage_counts import FigureRecord, ToolFigures, WhoFigures
from session_store import HistoryRecord, TimelineEntry, TimelineHead, TimelinePart
from session_store.ports.timelines import MAX_SESSIONS
from session_store.sqlite import SqliteBackend
from session_store.testing import FakeClock
from tests.requirements import requirement

FAST, SLOW = [0] * 5 + [10], [0] * 12 + [10]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "store.db", clock=FakeClock())
    await backend.open()
    yield backend
    await backend.close()


def used(session: str, client: str) -> TimelinePart:
    return TimelinePart(head=TimelineHead(session=session, client=client), entries=[TimelineEntry(1.0, "call")])


@requirement("ops.timeline")
async def test_a_session_behind_all_others_is_found(backend: SqliteBackend) -> None:
    found = ActivityQueries(backend, Replicas(backend), FakeClock())
    await backend.timelines.add([used("past", "past-agent")])
    crowd = [used(f"c{number:07}", "crowd") for number in range(MAX_SESSIONS - 1)]
    for begin in range(0, len(crowd), 500):  # no write may take longer than the store waits for one
        await backend.timelines.add(crowd[begin : begin + 500])

    [head] = await found.past_sessions(PastQuery(client="past-agent"))

    assert head.session == "past"
    assert await found.past_sessions(PastQuery(client="nobody")) == []
    assert len(await found.past_sessions(PastQuery(limit=7))) == 7


@requirement("ops.console-search")
async def test_a_tool_is_looked_for_in_the_entries_of_a_bounded_number_of_sessions(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ActivityQueries(backend, Replicas(backend), FakeClock())
    for session, tool in (("a-read", "read_file"), ("b-get", "get"), ("c-read", "read_file")):
        entries = [TimelineEntry(1.0, "call", "files", tool, "ok")]
        await backend.timelines.add([TimelinePart(head=TimelineHead(session=session), entries=entries)])
    asked = PastQuery(tool="READ", server="file")
    assert sorted(head.session for head in await found.past_sessions(asked)) == ["a-read", "c-read"]
    assert len(await found.past_sessions(PastQuery(tool="read", limit=1))) == 1
    assert await found.past_sessions(PastQuery(tool="read", server="web")) == []
    monkeypatch.setattr(timelines_and_history, "MOST_SEARCHED", 2)
    looked_at = await backend.timelines.newest(2)
    some = [head.session for head in looked_at if head.session.endswith("read")]
    assert [head.session for head in await found.past_sessions(asked)] == some


def a_record(at: int, replica: str, *tools: ToolFigures, live: int = 1) -> HistoryRecord:
    who = [WhoFigures("ann", sum(tool.calls for tool in tools), 0, 1)]
    record = FigureRecord(tools=list(tools), principals=who, live=live)
    return HistoryRecord(at, replica, msgspec.json.encode(record))


@requirement("ops.history")
def test_replicas_add_up_to_one_point_a_step_and_steps_without_calls_are_there() -> None:
    records = [
        a_record(60, "a", ToolFigures("s", "fast", 10, 1, 0.01, [*FAST])),
        a_record(60, "b", ToolFigures("s", "slow", 10, 2, 1.0, [*SLOW]), live=2),
        a_record(600, "b", ToolFigures("s", "slow", 10)),
    ]
    first, second = points_of(records, [60, 120])
    assert (first.at, first.calls, first.failed, first.sessions) == (60, 20, 3, 3)
    assert first.p50_s <= BUCKETS_S[5] and BUCKETS_S[11] <= first.p99_s <= BUCKETS_S[12]
    assert (second.at, second.calls) == (120, 0), "and what is outside of the steps is left out"
    (only,) = points_of(records, [60], server="s", tool="fast")
    assert (only.calls, only.failed) == (10, 1)
    assert points_of(records, [60], server="other")[0].calls == 0


@requirement("ops.history")
@pytest.mark.parametrize(
    ("counts", "total_s", "longest_s", "p50_s", "p99_s"),
    [
        ([1], 4.2, 0.0, (4.2, 4.2), 4.2),  # as long as the only one
        ([1, 1], 8.0, 0.0, (0.0, 8.0), 8.0),  # no longer than all together
        ([1, 1], 9.61, 5.42, (4.19, 5.42), 5.42),  # no longer than the longest
    ],
)
def test_no_duration_is_longer_than_the_calls_were(
    counts: list[int], total_s: float, longest_s: float, p50_s: tuple[float, float], p99_s: float
) -> None:
    counts = [0] * BUCKETS_S.index(5.0) + counts  # the first is that of 2.5 to 5 seconds
    tool = ToolFigures("s", "one", sum(counts), 0, total_s, counts, longest_s)
    (row,) = usage_of([a_record(60, "a", tool)], "tool", 60)
    assert row.p99_s == p99_s and p50_s[0] <= row.p50_s <= p50_s[1]


@requirement("ops.history")
def test_use_is_by_tool_server_or_caller_the_most_calls_first() -> None:
    records = [
        a_record(60, "a", ToolFigures("s", "one", 3, 1, 0.3), ToolFigures("t", "two", 5)),
        a_record(60, "b", ToolFigures("s", "one", 3), ToolFigures("s", "three", 1)),
    ]
    assert [(r.server, r.name, r.calls, r.failed) for r in usage_of(records, "tool", 60)] == [
        ("s", "one", 6, 1),
        ("t", "two", 5, 0),
        ("s", "three", 1, 0),
    ]
    assert [(r.server, r.calls) for r in usage_of(records, "server", 60)] == [("s", 7), ("t", 5)]
    (ann,) = usage_of(records, "principal", 120)
    assert (ann.name, ann.calls, ann.sessions, ann.per_min) == ("ann", 12, 2, 6.0)
    assert usage_of(records, "tool", 60)[0].mean_s == 0.05 and usage_of(records, "client", 60) == []


@requirement("ops.console", "ops.history")
def test_a_record_of_an_older_release_does_not_shorten_what_its_calls_took() -> None:
    slow, fast = [0] * BUCKETS_S.index(5.0) + [3], [0] * BUCKETS_S.index(0.1) + [1]
    older, newer = ToolFigures("s", "one", 3, 0, 14.0, slow), ToolFigures("s", "one", 1, 0, 0.09, fast, 0.09)
    for records in ([older, newer], [newer, older]):
        (row,) = usage_of([a_record(60, "a", one) for one in records], "tool", 60)
        assert row.p99_s > 4.0
