"""A slow call becomes a task: the store first, the handle second; and a call that cannot become one stays a call."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.suspended_call import InputRequest
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE, OutOfMemory, unreachable
from gateway.protocol.merged_lists import Called
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.stored_call import StoredCall
from session_store import StoreFull, StoreUnavailable, Task
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream
from tests.unit.calls.parts import Server, turns
from tests.unit.tasks.parts import DECLARATION, HANDLES, Replica, Store, an_exchange, result
from transports.era import Era
from transports.inbound_port import Answer, Refused, Request

pytestmark = requirement("task.make")

TOOL = Called(server="main", name="build", is_repeatable=True, task_support="required")
PARAMS = {"name": msgspec.Raw(b'"build"'), "arguments": msgspec.Raw(b"{}")}


class Parts:
    """A call that becomes a task at once. This object is also the reply of the call."""

    headers: Any = ()
    is_doubtful = False

    def __init__(self, **settings: Any) -> None:
        self.store = Store()
        self.replica = Replica(self.store, **settings)
        self.table, self.counts = self.replica.table, self.replica.counts
        self.exchange = an_exchange(self.replica.live.of(self.store.session))
        self.exchange.frame(1, PARAMS, {})  # the client has asked for no progress
        self.is_done = False

    def cancel(self, reason: str) -> None:
        self.exchange.fail(UPSTREAM_UNAVAILABLE, reason)

    def done(self) -> None:
        self.is_done = True

    async def answer(self, refused: asyncio.Event | None = None, tool: Called = TOOL, forwarded: Any = None) -> Answer:
        """The answer to the call, which the server takes, or refuses once `refused` is set."""

        async def accepted() -> Answer:
            if refused is None:
                return cast("Answer", self)
            await refused.wait()
            raise OutOfMemory("build")

        request = Request(era=Era.MODERN, endpoint="/mcp", headers={}, params=PARAMS, forwarded=forwarded)
        return await self.replica.maker.answer(self.exchange, request, [], accepted(), lambda: tool)

    async def waiting(self) -> Answer:
        """The answer to the call, while its task waits for the store."""
        self.store.tasks.go.clear()
        answer = await self.answer()
        await turns()
        assert self.store.tasks.created and not self.exchange.replies.is_closed, "the handle has not left"
        return answer

    async def goes_on(self) -> None:
        """The store writes."""
        self.store.tasks.go.set()
        await turns()
        self.store.clock.pass_time(1.0)

    async def progress(self, *numbers: str) -> None:
        for number in numbers:
            params = f'{{"progress":{number}}}'
            self.exchange.emit(f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'.encode())
        await turns()

    async def first(self, answer: Answer) -> Any:
        frame = await answer.replies.next()
        assert frame is not None and frame.final
        return msgspec.json.decode(frame.data)["result"]

    async def finished(self) -> Task:
        """The record of the task once its call has ended."""
        self.exchange.finish_translated(result("done"))
        await self.table.settled()
        stored = await self.stored()
        assert stored is not None and len(self.table) == 0
        return stored

    async def stored(self) -> Task | None:
        (task,) = self.store.tasks.created
        return await self.store.tasks.get(task.session_id, task.id)


async def test_the_handle_leaves_after_the_task_is_stored_and_the_result_goes_to_the_record() -> None:
    parts = Parts()
    answer = await parts.waiting()
    await parts.goes_on()
    task = await parts.first(answer)
    handle = HANDLES.read(task["taskId"])
    assert task["resultType"] == "task" and handle is not None and handle.kind == "made"
    answer.done()
    assert not parts.is_done, "the session stays in use"
    stored = await parts.finished()
    assert (stored.status, stored.result) == ("completed", b'{"text":"done"}')
    assert parts.is_done and parts.counts == {"made": 1, "completed": 1}
    assert StoredCall.read(stored.request) == StoredCall(PARAMS, parts.store.session.context), "it may run again"


@requirement("rep.no-retry")
@pytest.mark.parametrize("agrees", [True, False])
async def test_a_forwarded_call_becomes_a_task_once_its_sender_has_agreed(agrees: bool) -> None:
    parts, agreement = Parts(), asyncio.Event()

    async def started() -> None:
        await agreement.wait()
        if not agrees:
            raise unreachable()

    parts.store.tasks.go.set()
    answer = await parts.answer(forwarded=SimpleNamespace(before_sending=started))
    await turns()
    assert not parts.store.tasks.created and answer.replies.first is None
    agreement.set()
    await turns()
    assert bool(parts.store.tasks.created) is agrees
    if agrees:
        assert (await parts.first(answer))["resultType"] == "task"
        assert (await parts.finished()).status == "completed"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFull("full"), None], ids=["away", "full", "too many"])
async def test_a_call_stays_a_call_if_the_store_takes_no_task(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts()
    if error is None:
        monkeypatch.setattr("gateway.tasks.gateway_tasks.quotas.MAX_PER_SESSION", 1)
        assert await parts.replica.quotas.hold(await parts.store.task())
    else:
        parts.store.tasks.failures = [error]
    answer = await parts.answer()
    await turns()
    parts.exchange.finish_translated(result("plain"))
    assert await parts.first(answer) == {"text": "plain"}
    answer.done()
    assert parts.is_done and len(parts.table) == 0 and parts.counts == ({} if error else {"refused": 1})


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_call_that_ends_while_its_task_is_stored_has_no_task(*, leaves: bool) -> None:
    parts = Parts()
    answer = await parts.waiting()
    if leaves:
        answer.cancel("the client disconnected")
        answer.done()
    else:
        parts.exchange.finish_translated(result("plain"))
        assert await parts.first(answer) == {"text": "plain"}
    await parts.goes_on()
    assert await parts.stored() is None, "nobody has its handle"
    assert parts.exchange.is_over and (parts.exchange.work is None or not leaves)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_question_before_the_task_is_stored_is_asked_by_the_task_or_the_call(*, is_stored: bool) -> None:
    parts = Parts()
    parts.store.tasks.failures = [] if is_stored else [StoreUnavailable("away")]
    answer = await parts.waiting()
    server = Server()
    parts.exchange.sent_as(server.conversation, 1, None, 0.0)
    question = InputRequest(server.conversation, b"1", "elicitation/create", {"message": msgspec.Raw(b'"?"')})
    parts.exchange.suspendable().add(question)
    parts.exchange.suspend({"resultType": msgspec.Raw(b'"input_required"')})
    await turns()
    assert not parts.exchange.is_suspended and not parts.exchange.replies.is_closed
    await parts.goes_on()
    assert (await parts.first(answer))["resultType"] == ("task" if is_stored else "input_required")
    assert parts.exchange.is_suspended
    if is_stored:
        await parts.table.settled()
        stored = await parts.stored()
        assert stored is not None and stored.status == "input_required"


ASKS = {
    "resultType": "input_required",
    "requestState": "s",
    "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}},
}


async def asked_by_a_result() -> tuple[Parts, Answer, FakeUpstream]:
    """A call that its server answers with a question while its task waits for the store."""
    parts, upstream = Parts(), FakeUpstream()
    parts.exchange.declaration = DECLARATION
    answer = await parts.waiting()
    await upstream.conversation.start(parts.exchange, PARAMS, {})
    upstream.links[0].answer(ASKS)
    await turns()
    assert answer.replies.first is None and upstream.conversation.has_calls
    return parts, answer, upstream


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_result_that_asks_before_the_task_is_stored_goes_to_the_task_or_the_client(*, is_stored: bool) -> None:
    parts, answer, upstream = await asked_by_a_result()
    parts.store.tasks.failures = [] if is_stored else [StoreUnavailable("away")]
    await parts.goes_on()
    first = await parts.first(answer)
    assert upstream.conversation.has_calls is is_stored
    if not is_stored:
        assert first == ASKS
        return
    assert first["resultType"] == "task"
    await parts.table.settled()
    stored = await parts.stored()
    assert stored is not None and stored.status == "input_required"
    (running,) = parts.table
    running.answer({key: msgspec.Raw(b"{}") for key in parts.exchange.open_questions()})
    await turns()
    assert upstream.links[0].sent[-1]["params"]["inputResponses"] == {"k": {}}


async def test_a_result_that_asks_is_dropped_if_the_call_ends_before_its_task_is_stored() -> None:
    parts, answer, upstream = await asked_by_a_result()
    await upstream.conversation.close()
    frame = await answer.replies.next()
    assert frame is not None and frame.error_code == OUTCOME_UNKNOWN
    await parts.goes_on()
    assert await parts.stored() is None and not upstream.conversation.has_calls


async def test_a_held_question_that_the_client_has_not_declared_fails_the_task_and_frees_the_server() -> None:
    parts, answer, upstream = await asked_by_a_result()
    parts.exchange.declaration = None
    await parts.goes_on()
    assert (await parts.first(answer))["resultType"] == "task"
    await parts.table.settled()
    stored = await parts.stored()
    assert stored is not None and stored.status == "failed" and not upstream.conversation.has_calls


async def test_a_held_result_that_cannot_be_passed_on_fails_its_call() -> None:
    def fails(exchange: object, result: object) -> Any:
        raise ValueError("no state")

    parts, answer, upstream = await asked_by_a_result()
    parts.exchange.shape_with(fails)
    parts.store.tasks.failures = [StoreUnavailable("away")]
    await parts.goes_on()
    frame = await answer.replies.next()
    assert frame is not None and frame.error_code == OUTCOME_UNKNOWN and not upstream.conversation.has_calls


async def test_questions_that_are_still_gathered_are_asked_once() -> None:
    parts = Parts()
    await parts.waiting()
    server, suspended = Server(), parts.exchange.suspendable()
    parts.exchange.sent_as(server.conversation, 1, None, 0.0)
    for number in (b"1", b"2"):
        suspended.add(InputRequest(server.conversation, number, "elicitation/create", {}))
        assert suspended.gather()
        if number == b"1":
            suspended.gathered()
            parts.exchange.suspend({"resultType": msgspec.Raw(b'"input_required"')})
    await parts.goes_on()
    assert not parts.exchange.is_suspended, "the timer of the second question asks"
    suspended.gathered()
    parts.exchange.suspend({"resultType": msgspec.Raw(b'"input_required"')})
    assert parts.exchange.is_suspended and len(parts.exchange.open_questions()) == 2


async def test_a_call_that_is_refused_is_refused() -> None:
    parts, refused = Parts(after_s=60.0), asyncio.Event()
    refused.set()
    with pytest.raises(Refused):
        await parts.answer(refused, Called())
    assert parts.store.tasks.created == []


async def test_a_call_that_cannot_be_sent_after_its_handle_has_left_fails_its_task() -> None:
    parts, refused = Parts(), asyncio.Event()
    assert (await parts.first(await parts.answer(refused)))["resultType"] == "task"
    refused.set()
    await turns()
    await parts.table.settled()
    stored = await parts.stored()
    assert stored is not None and stored.status == "failed" and "nothing was executed" in stored.message
    data = msgspec.json.decode(stored.error)["data"]
    assert (data["reason"], data["retryAfter"]) == ("out_of_memory", 30)


async def test_progress_that_no_number_can_hold_leaves_the_task_as_it_is() -> None:
    parts = Parts()
    huge = "1" + "0" * 400
    await parts.progress(huge)
    assert (await parts.first(await parts.answer()))["resultType"] == "task"
    await parts.progress(huge, "2")
    (running,) = parts.table
    assert running.task.message == "progress: 2"
    assert (await parts.finished()).status == "completed"


async def test_a_failure_after_the_handle_has_left_undoes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
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
    parts.store.tasks.go.clear()
    waiting = asyncio.ensure_future(parts.answer(refuse))
    await turns()
    assert parts.store.tasks.created
    refuse.set()
    parts.store.tasks.go.set()  # both go on in the same turn of the loop, the refusal first
    with pytest.raises(Refused):
        await waiting
    await turns()
    assert parts.counts["made"] == 0 and len(parts.table) == 0
