"""Audit events while the store is unreachable."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.config.admin import AuditSettings
from gateway.observability.audit import FULL_ALIKE, FULL_IN_ALL, SUMS, Audit, AuditLines, Repeated
from gateway.observability.logs import CORRELATION
from gateway.observability.observed_call import ObservedCall
from gateway.observability.request_outcomes import OK
from session_store import AuditEvent, Context, StoreUnavailable
from session_store.embedded.accounting import MemoryAuditTrail
from session_store.testing import FakeClock, a_session, a_task
from tests.requirements import requirement


class Silent(MemoryAuditTrail):
    """A trail whose store is away for a while."""

    is_away = True

    async def record(self, events: Sequence[AuditEvent]) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        await super().record(events)


@requirement("life.events", "ops.figures")
async def test_the_end_of_a_session_says_whose_it_was_how_long_and_how_busy() -> None:
    clock, trail = FakeClock(), MemoryAuditTrail()
    session = a_session(clock, context=Context(workspace="w-1", trust="sandboxed"))
    audit = Audit(trail, clock)
    clock.pass_time(90.0)
    CORRELATION.set("c-1")
    audit.ended("ended", session, "the client ended it", 3)
    audit.ended("expired", session, "", 0)
    await audit.flush()
    expired, ended = await trail.recent()
    assert (ended.principal, ended.endpoint) == (str(session.principal), session.endpoint)
    assert (ended.correlation, ended.lasted_s, ended.calls, expired.calls) == ("c-1", 90.0, 3, 0)
    assert (ended.workspace, ended.trust) == ("w-1", "sandboxed")
    assert audit.counts == {"ended": 1, "expired": 1} and audit.durations["ended"].total == 90.0
    assert (sum(audit.calls_each.counts), audit.calls_each.total) == (2, 3), "how busy sessions are"


ARGUMENTS = b'{"query":"Bearer abcdefgh12345678","api_key":"k","at":{"password":"p","n":[1]}}'


@requirement("life.events")
@pytest.mark.parametrize(
    ("shown", "given", "told"),
    [
        (True, ARGUMENTS, ""),
        (False, ARGUMENTS, ""),
        ("names", ARGUMENTS, '["query","api_key","at"]'),
        ("values", ARGUMENTS, '{"query":"[redacted]","api_key":"[redacted]","at":{"password":"[redacted]","n":[1]}}'),
        ("values", b'{"a":"%s"}' % (b"x" * 3_000), '{"a":"' + "x" * 1_994 + "..."),
        ("names", b"[1]", "(no object)"),
        ("values", b'{"a":', "(unreadable)"),
    ],
)
async def test_a_recorded_call_has_the_part_of_its_arguments_that_the_operator_wants(
    shown: Any, given: bytes, told: str
) -> None:
    trail = MemoryAuditTrail()
    audit = Audit(trail, lambda: 0.0, AuditSettings(calls=shown))
    audit.call_watcher(a_session(FakeClock()), "s/t", 0.0, given)(ObservedCall(), OK, b"")
    await audit.flush()
    [event] = await trail.recent()
    assert (event.event, event.arguments) == ("called", told)


@requirement("task.operators")
async def test_the_line_of_an_outcome_names_the_task_as_all_its_lines_do(caplog: pytest.LogCaptureFixture) -> None:
    clock, trail = FakeClock(), MemoryAuditTrail()
    audit, task = Audit(trail, clock), a_task(clock, id="one-of-many", message="disk full")
    with caplog.at_level("INFO"):
        for what in ("completed", "refused"):
            audit.task(task, what)
    assert [(line.getMessage(), line.task, line.reason) for line in caplog.records] == [  # type: ignore[attr-defined]  # fields of the event
        ("task completed", "one-of-m", "disk full"),
        ("task refused", "", "disk full"),
    ]
    await audit.flush()
    assert [event.reason for event in await trail.recent()] == ["disk full", "one-of-m disk full"]


@requirement("wall.audit")
async def test_while_the_store_is_away_strangers_displace_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observability.audit._MOST_WAITING", 20)
    monkeypatch.setattr("gateway.observability.audit._MANY", 15)
    trail = Silent()
    audit = Audit(trail, lambda: 0.0)
    for number in range(30):
        audit.record("created", session=f"s{number}", principal="anonymous" if number > 10 else "api-key:alice")
    with pytest.raises(StoreUnavailable):
        await audit._flush()
    assert audit._dropped == 10
    trail.is_away = False
    await audit.flush()
    assert [event.principal for event in await trail.recent()].count("api-key:alice") == 11


@requirement("life.events")
async def test_a_store_that_is_away_makes_no_line_twice(tmp_path: Path) -> None:
    file, trail = tmp_path / "audit.jsonl", Silent()
    audit = Audit(trail, lambda: 0.0, AuditSettings(to=("store", str(file))))
    for number in range(3):
        audit.record("ended", session=f"session-{number}")
        with pytest.raises(StoreUnavailable):
            await audit.flush()
    trail.is_away = False
    await audit.flush()
    assert len(file.read_text().splitlines()) == 3
    assert [event.session for event in await trail.recent()] == ["session-"] * 3


@requirement("wall.unread-log")
async def test_a_disk_that_stands_still_holds_nothing_up_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    os.mkfifo(file)  # nobody reads it: to open it does not return, as on a disk that stands still
    audit = Audit(MemoryAuditTrail(), lambda: 0.0, AuditSettings(to=("store", str(file))))
    audit._lines = AuditLines(file, to_stderr=False, most_bytes=1_000)
    for number in range(200):
        audit.record("ended", session=f"session-{number}")
        if number % 10 == 0:
            await audit._flush()
    await audit.flush()
    await audit.flush()
    assert audit.lost > 0
    with file.open("rb") as reader:  # it goes on
        written = len(await asyncio.to_thread(reader.readlines))
    await audit.flush()
    assert written + audit.lost == 200, "none is dropped silently"


@requirement("wall.audit")
def test_refusals_of_many_addresses_cost_a_bounded_number_of_events() -> None:
    now = 0.0
    repeated = Repeated(lambda: now)
    told: list[AuditEvent] = []
    for number in range(20_000):
        event = AuditEvent(at=now, event="refused", reason="bad key", client=f"192.0.{number % 250}.{number % 97}")
        told += filter(None, [repeated.take(event)])
    assert len(told) == FULL_IN_ALL
    sums = list(repeated.sums())
    assert len(sums) == SUMS + 1 and sum(event.count for event in sums) == 20_000 - FULL_IN_ALL
    assert not list(repeated.sums())
    now = 1.0
    alike = AuditEvent(at=now, event="refused", reason="bad key", client="192.0.2.1")
    assert sum(repeated.take(alike) is not None for _ in range(100)) == FULL_ALIKE
