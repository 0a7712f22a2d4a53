"""A task ends when its call ends, whatever the end of the call looks like."""

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.admin.query_types import TaskQuery
from gateway.admin.verb_handlers import task_row
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.suspended_call import InputRequest, question_digest
from gateway.errors import OUTCOME_UNKNOWN
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.stored_call import RecordedAnswers
from gateway.tasks.gateway_tasks.task_record_writer import TaskRecordWriter
from gateway.tasks.gateway_tasks.task_states import AGAIN, MAX_LEVELS
from session_store import StoreFull, StoreUnavailable, Task
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.support.too_deep import TOO_DEEP
from tests.unit.calls.parts import Server, turns
from tests.unit.tasks.parts import Replica, Store, Tasks, a_task, one_that_runs
from transports.jsonrpc import INTERNAL_ERROR, encode_notification
from transports.reply_queue import Frame

pytestmark = requirement("task.durable")

ERRORS: dict[bytes, tuple[int, str, bool]] = {
    b'{"code":-32000,"message":"boom","data":1e400}': (-32000, "boom", True),
    b'{"code":-32000,"message":"boom","data":{"at":[1e400]}}': (-32000, "boom", True),
    b'{"code":-5,"message":"boom","data":' + b"[" * MAX_LEVELS + b"]" * MAX_LEVELS + b"}": (-5, "boom", False),
    b'{"code":1e400,"message":"boom"}': (INTERNAL_ERROR, "cannot be read", False),
    b'{"code":-1,"message":5}': (INTERNAL_ERROR, "cannot be read", False),
    b'{"code":-1,"message":"\\ud800"}': (INTERNAL_ERROR, "cannot be read", False),
    b'"text"': (INTERNAL_ERROR, "cannot be read", False),
    b"null": (INTERNAL_ERROR, "cannot be read", False),
    b"[]": (INTERNAL_ERROR, "cannot be read", False),
}


@pytest.mark.parametrize("error", sorted(ERRORS), ids=lambda error: error[:60].decode())
async def test_any_error_of_the_server_ends_the_task(error: bytes) -> None:
    _, replica, running = await one_that_runs()
    found = await replica.settles(running, error=error)
    code, text, has_data = ERRORS[error]
    told = msgspec.json.decode(found.error, type=dict[str, msgspec.Raw])
    assert (found.status, int(bytes(told["code"]))) == ("failed", code)
    assert (
        bytes(told["data"]).startswith(b'{"reason":') is not has_data
        and text in found.message
        and text in msgspec.json.decode(told["message"])
    )
    assert len(replica.table) == 0


async def test_an_end_that_cannot_be_read_ends_the_task() -> None:
    store, replica, running = await one_that_runs()
    task = running.task
    for final in (b"not JSON", b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":' + TOO_DEEP + b"}}"):
        running.receive(Frame(final, final=True))
        await replica.table.settled()
        assert (await store.read(task)).status == "failed" and len(replica.table) == 0
    running.exchange.fail(OUTCOME_UNKNOWN, "later")
    assert "cannot be read" in (await store.read(task)).message


@requirement("task.make")
@pytest.mark.parametrize("runs", [1, 2])
async def test_the_last_message_of_a_task_is_about_its_outcome(runs: int) -> None:
    ends = {"": {"result": b'{"content":[]}'}, "no disk": {"error": b'{"code":1,"message":"no disk"}'}}
    for text, end in ends.items():
        _, replica, running = await one_that_runs(runs=runs)
        running.receive(Frame(encode_notification("notifications/progress", b'{"progress":1,"message":"step 1"}')))
        again = [AGAIN] if runs > 1 else []
        assert running.task.message == ": ".join([*again, "step 1 (1)"])
        found = await replica.settles(running, **end)
        assert found.message == ": ".join([*again, *filter(None, [text])])


@requirement("task.operators")
async def test_an_error_that_the_tool_reports_is_told_to_operators_and_completes_the_task() -> None:
    store, replica, running = await one_that_runs()
    result = b'{"content":[{"type":"text","text":"no such file"}],"isError":true}'
    found = await replica.settles(running, result=result)
    assert (found.status, found.is_tool_error, found.message) == ("completed", True, "the tool has reported an error")
    assert found.reason == "no such file", "lists for 2025-11-25 clients have it without the result"
    assert replica.counts["tool error"] == 1 and not replica.counts["completed"]
    row = task_row(found, store.clock())
    assert (row.status, row.outcome, row.has_failed) == ("completed", "tool error", True)
    wanted = [TaskQuery(status=status).matches(found) for status in ("tool_error", "completed", "failed")]
    assert wanted == [True, True, False]


QUESTION = {"message": msgspec.Raw(b'"?"')}


def asks(server: Server, running: RunningTask, *numbers: bytes) -> None:
    """The server asks these questions while it works on the call."""
    running.exchange.sent_as(server.conversation, 1, None, 0.0)
    running.exchange.step(ExchangeEvent.ASK)
    for number in numbers:
        running.exchange.suspendable().add(InputRequest(server.conversation, number, "elicitation/create", QUESTION))
    running.asks()


@pytest.mark.parametrize("may_repeat", [False, True])
async def test_answers_are_recorded_while_the_call_may_run_again(may_repeat: bool) -> None:
    store, replica, running = await one_that_runs(is_repeatable=may_repeat)
    server = Server()
    asks(server, running, b"1", b"2")
    for key in ("q1", "q2"):
        running.answer({key: msgspec.Raw(f'"{key}"'.encode()), "q3": msgspec.Raw(b"{}")})
    assert [number for number, _ in server.answers] == [b"1", b"2"] and await running.record.written()
    digest = question_digest("elicitation/create", QUESTION)
    recorded = RecordedAnswers((await store.read(running.task)).answers)
    assert [recorded.take(digest) for _ in range(2)] == (['"q1"', '"q2"'] if may_repeat else [None, None])
    assert (await replica.settles(running, result=b"{}")).answers == b"", "an outcome needs none"


async def test_questions_for_which_the_store_has_no_room_end_the_call() -> None:
    store, replica, running = await one_that_runs()
    store.tasks.failures = [StoreFull("full")]
    server = Server()
    asks(server, running, b"1")
    async with asyncio.timeout(60):
        assert await running.record.written()
        await replica.table.settled()
    found = await store.read(running.task)
    assert found.status == "cancelled" and "(256 MiB)" in found.message
    assert len(server.cancelled) == 1 and len(replica.table) == 0


async def test_a_stop_says_at_once_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    store, server = Store(), Server()
    replica = Replica(store)
    tasks = [await store.task(id=name, is_repeatable=name == "again") for name in ("again", "sent", "unsent")]
    for task in tasks:
        running = replica.running(task)
        running.exchange.conversation = server.conversation
        running.exchange.number = int(task.id != "unsent")
    replica.table.stop()
    await replica.table.settled()
    again, sent, unsent = [await store.read(task) for task in tasks]
    assert (again.status, sent.status, unsent.status) == ("working", "failed", "cancelled")
    assert "Outcome unknown" in sent.message and str(OUTCOME_UNKNOWN).encode() in sent.error
    assert len(server.cancelled) == 2 and "before the call was sent" in unsent.message
    assert replica.counts["unknown"] == 1 and replica.counts["cancelled"] == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the gateway stops with 3 tasks that work: 2 end with it, and 1 go on elsewhere or later"
    ]


# -- the changes of its record on their way to the store: in order, few, and never over those of another owner


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
        self.record = TaskRecordWriter(
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


async def recorded(room: int = 1_000_000) -> tuple[TaskRecordWriter, Parts]:
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


async def test_a_change_is_kept_when_the_store_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.tasks.gateway_tasks.task_record_writer._AGAIN_S", 0.0)
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
    parts.no_room = lambda: record.change(status="cancelled", questions=b"", message="no room")  # type: ignore[method-assign]  # told when it happens
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
