"""A slow call becomes a task: the store first, the handle second; and a call that cannot become one stays a call."""

import asyncio
from collections import Counter
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.live_session import LiveSession
from gateway.config.tasks import TaskSettings
from gateway.errors import UPSTREAM_UNAVAILABLE, unknown_tool
from gateway.protocol.listing import Called
from gateway.tasks.changes import TaskChanges
from gateway.tasks.exchange import TaskExchange
from gateway.tasks.handles import TaskHandles
from gateway.tasks.maker import TaskMaker
from gateway.tasks.quotas import RunningNames, TaskQuotas
from gateway.tasks.running import RunningTask
from gateway.tasks.stored_call import StoredCall
from gateway.tasks.table import TaskTable
from session_store import KeyRing, StoreFull, StoreUnavailable, Task
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.tasks.parts import result
from transports.era import Era
from transports.inbound_port import Answer, Refused, Request
from transports.reply_queue import ReplyQueue
from transports.soon import arrived

pytestmark = [pytest.mark.anyio, requirement("task.make")]

TOOL = Called(server="main", name="build", is_repeatable=True, task_support="required")
PARAMS = {"name": msgspec.Raw(b'"build"'), "arguments": msgspec.Raw(b"{}")}


class Parts:
    """A call that becomes a task at once. The store may fail, or wait until it is told to go on."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.backend = MemoryBackend(clock=self.clock)
        self.live = LiveSession(a_session(self.clock), self.backend.events)
        self.exchange = TaskExchange(method="tools/call", client_id=7, live=self.live, replies=ReplyQueue())
        self.wire = self.exchange.replies
        self.ring = KeyRing.ephemeral()
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.created: list[Task] = []
        self.is_done = False
        chosen, quotas = TaskSettings(**settings), self.backend.quotas
        self.counts: Counter[str] = Counter()
        self.table = TaskTable(
            chosen,
            cast("Any", self),
            RunningNames(quotas, "r1"),
            TaskChanges(self.backend.bus),
            noted=lambda _, what: self.counts.update((what,)),
            clock=self.clock,
        )
        self.maker = TaskMaker(self.table, TaskQuotas(chosen, quotas, cast("Any", self)), TaskHandles(self.ring))
        self.request = Request(era=Era.MODERN, endpoint="/mcp", headers={}, params=PARAMS)

    # -- as the store

    async def create(self, task: Task) -> None:
        assert not self.wire.is_closed, "the handle has not left"
        self.created.append(task)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        await self.backend.tasks.create(task)

    async def get(self, session_id: str, task_id: str) -> Task | None:
        return await self.backend.tasks.get(session_id, task_id)

    async def replace(self, task: Task) -> bool:
        return await self.backend.tasks.replace(task)

    # -- as the reply of the call

    headers: Any = ()
    is_doubtful = False

    def cancel(self, reason: str) -> None:
        self.exchange.fail(UPSTREAM_UNAVAILABLE, reason)

    async def done(self) -> None:
        self.is_done = True

    # -- the call

    async def accepted(self, refused: asyncio.Event | None = None) -> Answer:
        if refused is None:
            return cast("Answer", self)
        await refused.wait()
        raise unknown_tool("build")

    async def answer(self, refused: asyncio.Event | None = None, tool: Called = TOOL) -> Answer:
        """The answer to the call, which the server takes, or refuses once `refused` is set."""
        accepting = self.accepted(refused)
        return await arrived(self.maker.answer(self.exchange, self.request, [], accepting, lambda: tool))

    async def waiting(self) -> Answer:
        """The answer to the call, while its task waits for the store."""
        self.go.clear()
        answer = await self.answer()
        await turns()
        assert self.created
        return answer

    async def progress(self, *numbers: str) -> None:
        """Progress that the client has not asked for."""
        for number in numbers:
            params = f'{{"progress":{number}}}'
            self.exchange.emit(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'.encode())
        await turns()

    async def first(self, answer: Answer) -> Any:
        frame = await answer.replies.next()
        assert frame is not None and frame.final
        return msgspec.json.decode(frame.data)["result"]

    def finish(self, text: str) -> None:
        self.exchange.settle(result(text))

    async def finished(self) -> Task:
        """The record of the task once its call has ended."""
        self.finish("done")
        await self.table.settled()
        stored = await self.stored()
        assert stored is not None and len(self.table) == 0
        return stored

    async def stored(self) -> Task | None:
        (task,) = self.created
        return await self.get(task.session_id, task.id)


async def turns() -> None:
    """Let what was begun come to where it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_handle_leaves_after_the_task_is_stored_and_the_result_goes_to_the_record() -> None:
    parts = Parts()
    answer = await parts.answer()
    task = await parts.first(answer)
    handle = TaskHandles(parts.ring).read(task["taskId"])
    assert task["resultType"] == "task" and handle is not None and handle.kind == "made"
    await arrived(answer.done())
    assert not parts.is_done, "the session stays in use"
    stored = await parts.finished()
    assert (stored.status, stored.result) == ("completed", b'{"text":"done"}')
    assert parts.is_done and parts.counts == {"made": 1, "completed": 1}
    assert StoredCall.read(stored.request) == StoredCall(PARAMS, parts.live.session.context), "it may run again"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFull("full")], ids=["away", "full"])
async def test_a_call_stays_a_call_if_the_store_takes_no_task(error: Exception) -> None:
    parts = Parts()
    parts.error = error
    answer = await parts.answer()
    await turns()
    parts.finish("plain")
    assert await parts.first(answer) == {"text": "plain"}
    await arrived(answer.done())
    assert parts.is_done and len(parts.table) == 0 and parts.counts == {}


async def test_a_call_that_is_answered_while_its_task_is_stored_gets_its_answer() -> None:
    parts = Parts()
    answer = await parts.waiting()
    parts.finish("plain")
    assert await parts.first(answer) == {"text": "plain"}
    parts.go.set()
    await turns()
    parts.clock.pass_time(1.0)
    assert await parts.stored() is None, "nobody has its handle"


async def test_a_client_that_leaves_while_its_task_is_stored_has_no_task() -> None:
    parts = Parts()
    answer = await parts.waiting()
    answer.cancel("the client disconnected")
    await arrived(answer.done())
    parts.go.set()
    await turns()
    parts.clock.pass_time(1.0)
    assert await parts.stored() is None and parts.exchange.work is None and parts.exchange.is_over


async def test_a_call_that_is_refused_is_refused() -> None:
    parts, refused = Parts(after_s=60.0), asyncio.Event()
    refused.set()
    with pytest.raises(Refused):
        await parts.answer(refused, Called())
    assert parts.created == []


async def test_a_call_that_cannot_be_sent_after_its_handle_has_left_fails_its_task() -> None:
    parts, refused = Parts(), asyncio.Event()
    assert (await parts.first(await parts.answer(refused)))["resultType"] == "task"
    refused.set()
    await turns()
    await parts.table.settled()
    stored = await parts.stored()
    assert stored is not None and stored.status == "failed" and "Unknown tool" in stored.message


async def test_progress_that_no_number_can_hold_leaves_the_task_as_it_is() -> None:
    parts = Parts()
    parts.exchange.frame(1, PARAMS, {})  # the client has asked for no progress
    huge = "1" + "0" * 400
    await parts.progress(huge)
    assert (await parts.first(await parts.answer()))["resultType"] == "task"
    await parts.progress(huge, "2")
    (running,) = parts.table
    assert running.task.message == "progress: 2"
    assert (await parts.finished()).status == "completed"


async def test_a_failure_after_the_handle_has_left_undoes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    parts.exchange.frame(1, PARAMS, {})  # the client has asked for no progress
    await parts.progress("1")
    receive, failures = RunningTask.receive, [ZeroDivisionError()]

    def fails_once(running: RunningTask, frame: Any) -> None:
        if failures:
            raise failures.pop()
        receive(running, frame)

    monkeypatch.setattr(RunningTask, "receive", fails_once)
    assert (await parts.first(await parts.answer()))["resultType"] == "task" and not failures
    await turns()
    assert (await parts.finished()).status == "completed" and parts.counts == {"made": 1, "completed": 1}


async def test_a_call_that_is_refused_while_its_task_is_stored_becomes_no_task() -> None:
    parts, refuse = Parts(), asyncio.Event()
    parts.go.clear()
    waiting = asyncio.ensure_future(parts.answer(refuse))
    await turns()
    assert parts.created
    refuse.set()
    parts.go.set()  # both go on in the same turn of the loop, the refusal first
    with pytest.raises(Refused):
        await waiting
    await turns()
    assert parts.counts["made"] == 0 and len(parts.table) == 0
