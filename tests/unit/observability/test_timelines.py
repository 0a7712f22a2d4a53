"""Entries on their way to the store: bounded for sessions that call without a pause, lost by no outage."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from gateway.observability.request_outcomes import OK, TOOL_ERROR, EndedCall, Outcome
from gateway.observability.timelines import INITIALIZED_AGAIN, Timelines
from session_store import AuditEvent, Session, StoreUnavailable, TimelineEntry, TimelinePart
from session_store.session import redact
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement

pytestmark = requirement("ops.timeline")

SESSION = a_session(FakeClock())
NAME = redact(SESSION.id)


def call(at: float, tool: str = "t", outcome: Outcome = OK, why: str = "", session: Session = SESSION) -> EndedCall:
    return EndedCall(at, "tools/call", tool, "s", outcome, 0.5, session, "c" * 32, why)


class Counting:
    def __init__(self) -> None:
        self.calls = self.failed = 0

    def __call__(self, session: Session, calls: int, failed: int) -> None:
        self.calls += calls
        self.failed += failed


class Store:
    """Keeps parts, unless it is away."""

    def __init__(self) -> None:
        self.parts: list[TimelinePart] = []
        self.is_away = False

    async def add(self, parts: list[TimelinePart]) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.parts += parts


def a_recorder(store: object | None = None, count: Counting | None = None) -> Timelines:
    return Timelines(store or Store(), "r1", count or Counting())  # type: ignore[arg-type]  # fakes


def test_a_call_is_one_entry_from_its_begin_to_its_end() -> None:
    timelines = a_recorder()
    timelines.add_calls([call(10.0, outcome=TOOL_ERROR, why="key sk-live-0123456789abcdef0123456789abcdef\x1b[2J")])
    part = timelines.part_of(NAME)
    assert part is not None
    [entry] = part.entries
    assert (entry.at, entry.until, entry.took_s, entry.outcome) == (9.5, 10.0, 0.5, "tool error")
    assert (entry.kind, entry.server, entry.name, entry.replica) == ("call", "s", "t", "r1")
    assert "\x1b" not in entry.why and "0123456789abcdef" not in entry.why
    assert (part.head.session, part.head.calls, part.head.failed) == (NAME, 1, 1)
    assert SESSION.id not in msgspec.json.encode(part).decode()
    assert timelines.part_of("other") is None


async def test_calls_without_a_pause_are_summed_up() -> None:
    store, count = Store(), Counting()
    timelines = a_recorder(store, count)
    outcomes = dict.fromkeys(range(0, 10000, 100), TOOL_ERROR)
    for n in range(10_000):
        timelines.add_calls([call(float(n), f"t{n % 500}" if n % 2 else "often", outcomes.get(n, OK))])
    timelines.count()
    await timelines.flush()
    [part] = store.parts
    assert len(part.entries) < 130 and sum(entry.count for entry in part.entries) == 10_000
    assert [entry.at for entry in part.entries] == sorted(entry.at for entry in part.entries)
    assert part.entries[-1].until == 9_999.0 and part.entries[-1].count == 1
    often = max(part.entries, key=lambda entry: entry.count)
    assert often.count > 4_000 and often.took_s == pytest.approx(often.count / 2)
    assert sum(entry.outcome == "tool error" and entry.count == 1 for entry in part.entries) >= 24
    assert (part.head.calls, part.head.failed) == (10_000, 100) == (count.calls, count.failed)
    assert timelines.part_of(NAME) is None


async def test_an_outage_of_the_store_loses_nothing_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observability.timelines._MOST_SESSIONS", 200)
    store, count = Store(), Counting()
    timelines = a_recorder(store, count)
    store.is_away = True
    for at, outcome in ((1.0, OK), (2.0, TOOL_ERROR)):
        timelines.add_calls([call(at, outcome=outcome)])
        timelines.count()
        with pytest.raises(StoreUnavailable):
            await timelines.flush()
    store.is_away = False
    await timelines.flush()
    await timelines.flush()
    [part] = store.parts
    assert [entry.until for entry in part.entries] == [1.0, 2.0]
    assert (part.head.calls, part.head.failed) == (2, 1) == (count.calls, count.failed)
    for n in range(210):
        timelines.add(msgspec.structs.replace(SESSION, id=f"{n:08}"), TimelineEntry(1.0, "server"))
    await timelines.flush()
    assert len(store.parts) == 1 + 200


async def test_sessions_that_have_ended_can_be_written_before_the_others() -> None:
    store = Store()
    timelines = a_recorder(store)
    resting = msgspec.structs.replace(SESSION, id="resting-and-live")
    timelines.add_calls([call(1.0), call(1.0, session=resting)])
    timelines.add_event(AuditEvent(at=2.0, event="ended", session=NAME), SESSION)
    await asyncio.gather(timelines.flush(ended_only=True), timelines.flush(ended_only=True))
    assert [(part.head.session, part.head.ended, len(part.entries)) for part in store.parts] == [(NAME, "ended", 2)]
    await asyncio.gather(timelines.flush(), timelines.flush(ended_only=True))
    assert [part.head.session for part in store.parts] == [NAME, redact(resting.id)]


def test_events_of_a_session_are_entries() -> None:
    timelines = a_recorder()
    now = time.time()
    told: list[tuple[Any, dict[str, Any], tuple[str, ...]]] = [
        ("created", {}, ("session", "", "created")),
        ("called", {"tool": "s/t"}, ()),
        ("operated", {}, ()),
        ("resumed", {"reason": INITIALIZED_AGAIN}, ("session", "", "resumed")),
        ("resumed", {"reason": "taken over from a replica that does not answer"}, ("move", "", "resumed")),
        ("blocked", {"tool": "s", "reason": "no network", "count": 3}, ("refusal", "s", "")),
        ("refused", {"tool": "s/t", "reason": "not allowed"}, ("refusal", "s", "t")),
        ("task", {"tool": "s/t", "outcome": "made", "reason": "abcd"}, ("task", "s", "t")),
        ("expired", {}, ("session", "", "expired")),
    ]
    for event, more, _ in told:
        timelines.add_event(AuditEvent(at=now, event=event, session=NAME, **more), None)
    timelines.add_event(AuditEvent(at=now, event="refused", reason="of nobody"), None)
    part = timelines.part_of(NAME)
    assert part is not None and (part.head.ended, part.head.ended_at) == ("expired", now)
    assert [(entry.kind, entry.server, entry.name) for entry in part.entries] == [entry for *_, entry in told if entry]
    assert part.entries[3].count == 3 and part.entries[5].outcome == "made"


@requirement("ops.redact")
def test_a_reason_is_redacted_before_it_is_cut_and_cut_again_when_it_grows_readable() -> None:
    def told(**facts: Any) -> TimelineEntry:
        timelines = a_recorder()
        timelines.add_calls([call(1.0, outcome=TOOL_ERROR, **facts)])
        part = timelines.part_of(NAME)
        assert part is not None
        return part.entries[0]

    why = told(why=f"{'x' * 275} postgres://ann:correct-horse@db.example/notes").why
    assert "x [redacted]db" in why and "correct" not in why
    assert 400 < len(msgspec.json.encode(told(tool="\U000e0001" * 500, why="\U000e0001" * 5_000))) < 1_000
