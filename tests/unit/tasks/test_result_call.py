"""`tasks/result` of a 2025-11-25 client: open until the end, and the way of the task's questions."""

import asyncio
from time import monotonic
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.suspended_call import InputRequest
from gateway.tasks.handles import TaskHandle
from gateway.tasks.refusals import UnknownTask
from gateway.tasks.result_call import ResultCalls
from gateway.tasks.running import RunningTask
from session_store import StoreUnavailable, Task
from tests.requirements import requirement
from tests.unit.tasks.test_recovery import Replica, Store
from transports.jsonrpc import Message, encode, parse
from transports.reply_queue import ReplyQueue

pytestmark = pytest.mark.anyio

CLIENT = encode({"clientInfo": {"name": "c", "version": "1"}, "capabilities": {"elicitation": {}}})
QUESTION: Any = {"message": "who?", "requestedSchema": {"type": "object"}}


class Server:
    """The server that has asked. Notes what it is answered."""

    def __init__(self) -> None:
        self.told: list[Message] = []

    def answer(self, request_id: bytes, message: Message) -> None:
        self.told.append(message)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        raise AssertionError

    def notify(self, method: str, params: bytes | None) -> None:
        raise AssertionError


class Scene:
    """A task that runs here, and a client that asks for its result."""

    def __init__(self, replica: Replica, running: RunningTask, store: Store) -> None:
        self.replica, self.running, self.store = replica, running, store
        self.results = ResultCalls(replica.table, store.backend.bus)
        client = msgspec.structs.replace(store.session.client, initialize_params=CLIENT)
        session = msgspec.structs.replace(store.session, id="another session", client=client)
        self.live: LiveSession = replica.live.of(session)
        self.server = Server()
        self.failures: list[Exception] = []
        self.looks = 0

    async def look(self) -> Task:
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.running.task

    def call(self) -> Exchange:
        call = Exchange(method="tasks/result", client_id=7, live=self.live, replies=ReplyQueue())
        task = self.running.task
        handle = TaskHandle("made", task.session_id, task.endpoint, task.server, task.id)
        self.results.begin(call, handle, "handle", self.look)
        return call

    def ask(self) -> None:
        exchange = self.running.exchange
        exchange.conversation = cast("Any", self.server)
        exchange.step(cast("Any", "send"))
        params = {key: msgspec.Raw(encode(value)) for key, value in QUESTION.items()}
        owner = exchange.live
        assert isinstance(owner, LiveSession)
        assert owner.questions.suspend(exchange, InputRequest(self.server, b"1", "elicitation/create", params))
        exchange.suspend({})


async def scene() -> Scene:
    store = Store()
    task = await store.task()
    replica = Replica(store)
    return Scene(replica, replica.running(task, store.session), store)


async def read(call: Exchange) -> Message:
    """The next message to the client."""
    async with asyncio.timeout(10):
        frame = await call.replies.next()
    assert frame is not None
    return parse(frame.data)


@requirement("task.asked")
async def test_a_question_comes_with_the_id_of_the_task_and_goes_to_the_server() -> None:
    on = await scene()
    call = on.call()
    on.ask()
    question = await read(call)
    assert question.method == "elicitation/create"
    related = msgspec.json.decode(question.params_object()["_meta"])
    assert related == {"io.modelcontextprotocol/related-task": {"taskId": "handle"}}
    answer = {"action": "accept", "_meta": related}
    on.live.questions.answered(Message(jsonrpc="2.0", id=question.id, result=msgspec.Raw(encode(answer))))
    (told,) = on.server.told
    assert isinstance(told.result, msgspec.Raw)
    assert msgspec.json.decode(told.result) == {"action": "accept"}, "the server knows no such task"
    assert on.running.task.status == "working"
    on.running.exchange.settle(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b'{"content":[]}')))
    end = await read(call)
    assert isinstance(end.result, msgspec.Raw) and (await on.store.read(on.running.task)).status == "completed"
    assert msgspec.json.decode(end.result) == {"content": [], "_meta": related}


@requirement("task.asked")
async def test_an_error_of_the_client_reaches_the_server() -> None:
    on = await scene()
    call = on.call()
    on.ask()
    question = await read(call)
    refusal = msgspec.Raw(b'{"code":-1,"message":"rejected"}')
    on.live.questions.answered(Message(jsonrpc="2.0", id=question.id, error=refusal))
    assert [bytes(cast("Any", told.error)) for told in on.server.told] == [bytes(refusal)]
    assert on.running.task.status == "working"
    call.cancel("enough")


@requirement("task.asked")
async def test_a_client_gets_a_question_once_until_its_call_has_ended() -> None:
    on = await scene()
    first = on.call()
    on.ask()
    question = await read(first)
    second = on.call()
    first.cancel("the client has left")
    first.done()
    assert (await read(first)).method == "notifications/cancelled" or first.is_over
    again = await read(second)
    assert again.method == "elicitation/create" and again.id != question.id
    second.cancel("enough")


@requirement("task.asked")
async def test_a_task_that_becomes_unknown_ends_the_call() -> None:
    on = await scene()
    on.failures = [UnknownTask()]
    end = await read(on.call())
    assert isinstance(end.error, msgspec.Raw) and msgspec.json.decode(end.error)["code"] == UnknownTask().code


@requirement("task.asked")
async def test_an_outage_of_the_store_does_not_end_the_call() -> None:
    on = await scene()
    on.failures = [StoreUnavailable("gone")]
    call = on.call()
    on.running.exchange.settle(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b'{"content":[]}')))
    assert isinstance((await read(call)).result, msgspec.Raw) and on.looks == 2


@requirement("task.asked", "spec.priming")
async def test_the_stream_of_a_silent_wait_begins_as_that_of_any_call() -> None:
    on = await scene()
    call = on.call()
    reading = asyncio.ensure_future(call.replies.next(quiet_at=monotonic()))
    await asyncio.wait((reading,), timeout=5)
    assert reading.done() and isinstance(reading.exception(), TimeoutError), "which begins the stream"
    other = on.call()
    assert call.number != other.number, "each has its own stream, whatever its id"
    assert not call.is_over, "its task has its own time"
    for each in (call, other):
        each.cancel("enough")
