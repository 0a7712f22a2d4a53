"""The changes of a task's record on their way to the store: in order, few, and never over those of another owner."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.tasks.made.record import TaskRecord
from session_store import StoreFull, StoreUnavailable, Task
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.tasks.parts import Tasks, a_task, turns

pytestmark = [pytest.mark.anyio, requirement("task.durable")]


class Full(Tasks):
    """Tasks with so much room. The store may not say that it has written."""

    is_silent = False
    room = 1_000_000
    writes = 0

    async def replace(self, task: Task) -> bool:
        self.writes += 1
        if sum(map(len, (task.request, task.questions, task.answers, task.result))) > self.room:
            await asyncio.sleep(0)
            raise StoreFull("full")
        written = await super().replace(task)
        if self.is_silent:
            self.is_silent = False
            raise StoreUnavailable("the connection broke after the write")
        return written


class Parts:
    def __init__(self) -> None:
        clock = FakeClock(1_700_000_001.0)
        self.store = Full(clock)
        self.changed: list[Task] = []
        self.task = a_task()
        self.notify = self.changed.append
        self.record = TaskRecord(
            self.task,
            self.store,
            changed=lambda task: self.notify(task),
            no_room=lambda: self.no_room(),
            clock=clock,
        )

    def no_room(self) -> None:
        raise AssertionError("this task asks nothing")

    async def stored(self) -> Task:
        found = await self.store.get(self.task.session_id, self.task.id)
        assert found is not None
        return found


async def recorded(room: int = 1_000_000) -> tuple[TaskRecord, Parts]:
    """A task in a store that has so much room."""
    parts = Parts()
    await parts.store.create(parts.task)
    parts.store.room = room
    return parts.record, parts


async def test_progress_is_written_with_the_next_change_at_the_latest() -> None:
    record, parts = await recorded()
    record.change(can_wait=True, message="1")  # the first is written at once
    await turns()
    for number in range(2, 9):
        record.change(can_wait=True, message=str(number))
    assert record.task.message == "8" and (await parts.stored()).message == "1"
    record.change(status="input_required")
    assert await record.written()
    stored = await parts.stored()
    assert (stored.message, stored.status, stored.version) == ("8", "input_required", 3)
    assert [task.version for task in parts.changed] == [2, 3]


async def test_a_write_that_the_store_did_not_confirm_is_made_good() -> None:
    record, parts = await recorded()
    parts.store.is_silent = True
    record.change(message="written, but not confirmed")
    assert await record.written()
    parts.changed.clear()
    parts.store.is_silent = True
    record.change(status="completed", result=b"{}")
    assert await record.written(), "the retry finds that the record is over: by this write"
    (told,) = parts.changed
    assert told == await parts.stored() and told.status == "completed"


async def test_nothing_is_written_over_another_owner() -> None:
    record, parts = await recorded()
    assert await parts.store.replace(replace(parts.task, epoch=7, runs=2))
    record.change(status="completed", result=b'{"late":true}')
    assert not await record.written() and record.is_lost
    stored = await parts.stored()
    assert (stored.status, stored.epoch, stored.result) == ("working", 7, b"")


async def test_a_change_is_kept_when_the_store_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.tasks.made.record._AGAIN_S", 0.0)
    record, parts = await recorded()
    parts.store.failures = [StoreUnavailable("away")] * 1_000
    record.change(message="1")
    await turns()
    assert (await parts.stored()).message == ""
    parts.store.failures.clear()
    assert await record.written() and (await parts.stored()).message == "1", "it survives an outage"
    parts.store.failures = [ValueError("the store has a fault")] * 3
    record.change(status="completed", result=b"{}")
    assert await record.written() and (await parts.stored()).status == "completed"

    record, parts = await recorded()
    parts.store.failures = [ValueError("the store has a fault")] * 1_000
    record.change(status="completed", result=b"{}")
    assert not await record.written() and record.is_lost, "never told as stored"
    assert (await parts.stored()).status == "working" and parts.changed == [] and "is lost" in caplog.text


async def test_a_notification_that_fails_keeps_no_change_from_being_written(caplog: pytest.LogCaptureFixture) -> None:
    record, parts = await recorded()

    def changed(task: Task) -> None:
        parts.changed.append(task)
        raise RecursionError("too deep")

    parts.notify = changed
    for status in ("input_required", "completed"):
        record.change(status=status)
        assert await record.written() and (await parts.stored()).status == status
    assert len(parts.changed) == 2 and "not every client was notified" in caplog.text


LARGE = b"x" * 1_000


@pytest.mark.parametrize("name", ["answers", "request"])
async def test_a_full_store_gets_a_working_task_without_what_it_can_spare(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    record, parts = await recorded(room=100)
    changes: dict[str, Any] = {name: LARGE} | ({"upstream_id": "own"} if name == "request" else {})
    record.change(**changes)
    assert await record.written() and "store of tasks is full" in caplog.text
    record.change(status="input_required", questions=b'{"q1":{}}', asked=1)
    assert await record.written(), "what is small has room"
    stored = await parts.stored()
    assert (stored.status, stored.questions, stored.asked) == ("input_required", b'{"q1":{}}', 1)
    assert (stored.upstream_id, record.task.upstream_id) == ("", ""), "no later owner could follow it"
    assert getattr(stored, name) == b"" and stored.message == "" and parts.store.writes == 3


async def test_questions_that_a_full_store_does_not_take_end_the_call() -> None:
    record, parts = await recorded(room=100)
    parts.no_room = lambda: record.change(status="cancelled", questions=b"", message="no room")  # type: ignore[method-assign]
    record.change(status="input_required", questions=LARGE, asked=1)
    assert await record.written()
    assert [(task.status, task.message) for task in parts.changed] == [("cancelled", "no room")]
    assert await parts.stored() == parts.changed[0]


async def test_an_outcome_that_fits_is_kept_although_what_came_before_it_did_not() -> None:
    record, parts = await recorded(room=100)
    record.change(answers=LARGE)
    await asyncio.sleep(0)
    record.change(status="completed", result=b"{}", answers=b"")
    assert await record.written() and (await parts.stored()).result == b"{}"
