"""`tasks/result` of a 2025-11-25 client: open until the end, and the way of the task's questions."""

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession
from gateway.calls.suspended_call import InputRequest
from gateway.errors import TOO_OFTEN, too_much_in_flight
from gateway.tasks.errors import UnknownTask
from gateway.tasks.gateway_tasks.result_requests import ResultCalls
from gateway.tasks.gateway_tasks.running_task import RunningTask
from session_store import StoreUnavailable, Task
from tests.requirements import requirement
from tests.support.fake_upstream import answer_of
from tests.unit.calls.parts import Server, turns
from tests.unit.tasks.parts import Replica, Store, end_of_call, handle_of, one_that_runs
from transports.inbound.unauthenticated_limits import BodyBudget
from transports.jsonrpc import encode
from transports.reply_queue import ReplyQueue

pytestmark = requirement("task.asked")

CLIENT = encode({"clientInfo": {"name": "c", "version": "1"}, "capabilities": {"elicitation": {}}})
QUESTION = {"message": msgspec.Raw(b'"who?"'), "requestedSchema": msgspec.Raw(b'{"type":"object"}')}
MOST = 1 << 20
"""Bytes of outcomes that one client may leave unread."""


class Scene:
    """A task that runs here, and a client that asks for its result."""

    def __init__(self, store: Store, replica: Replica, running: RunningTask) -> None:
        self.replica, self.running, self.store = replica, running, store
        self.bodies = BodyBudget(1 << 30, Counter(), too_much_in_flight)
        self.results = ResultCalls(replica.table, store.backend.bus, self.bodies, MOST)
        client = msgspec.structs.replace(store.session.client, initialize_params=CLIENT)
        session = msgspec.structs.replace(store.session, id="another session", client=client)
        self.live = replica.live.of(session)
        self.server = Server()
        self.failures: list[Exception] = []
        self.looks = self.reads = 0

    async def look(self, known: Task | None = None) -> Task:
        self.looks += 1
        if self.failures:
            raise self.failures.pop(0)
        self.reads += known is None
        return known or self.running.task

    def call(self, live: LiveSession | None = None) -> Exchange:
        call = Exchange(method="tasks/result", client_id=7, live=live or self.live, replies=ReplyQueue())
        self.results.begin(call, handle_of(self.running.task), "handle", self.look)
        return call

    def ask(self) -> None:
        """The server asks while it works on the call."""
        exchange, server = self.running.exchange, self.server.conversation
        exchange.conversation = server
        exchange.step(ExchangeEvent.SEND)
        owner = self.replica.live.of(self.store.session)
        assert owner.questions.suspend(exchange, InputRequest(server, b"1", "elicitation/create", QUESTION))
        exchange.suspend({})

    def answers(self, question: Any, **answer: Any) -> None:
        """The client answers a question with that `result` or `error`."""
        end = end_of_call(**{name: encode(value) for name, value in answer.items()})
        self.live.questions.answered(msgspec.structs.replace(end, id=question["id"]))

    def ends(self, size: int = 0) -> None:
        """The call of the task ends, with a result of about that many bytes."""
        self.running.exchange.finish_translated(end_of_call(result=encode({"content": [], "data": "x" * size})))


@pytest.fixture
async def on() -> Scene:
    return Scene(*await one_that_runs())


async def test_a_question_comes_with_the_id_of_the_task_and_goes_to_the_server(on: Scene) -> None:
    call = on.call()
    on.ask()
    question = await answer_of(call)
    related = {"io.modelcontextprotocol/related-task": {"taskId": "handle"}}
    assert (question["method"], question["params"]["_meta"]) == ("elicitation/create", related)
    on.answers(question, result={"action": "accept", "_meta": related})
    assert on.server.answers == [(b"1", {"action": "accept"})], "the server knows no such task"
    assert on.running.task.status == "working"
    on.ends()
    assert (await answer_of(call))["result"] == {"content": [], "data": "", "_meta": related}
    assert (await on.store.read(on.running.task)).status == "completed"


async def test_an_error_of_the_client_reaches_the_server(on: Scene) -> None:
    call = on.call()
    on.ask()
    refusal = {"code": -1, "message": "rejected"}
    on.answers(await answer_of(call), error=refusal)
    assert on.server.errors == [refusal]
    assert on.running.task.status == "working"
    call.cancel("enough")


async def test_a_client_gets_a_question_once_until_its_call_has_ended(on: Scene) -> None:
    first = on.call()
    on.ask()
    question = await answer_of(first)
    second = on.call()
    first.cancel("the client has left")
    first.done()
    assert (await answer_of(first)).get("method") == "notifications/cancelled" or first.is_over
    again = await answer_of(second)
    assert again["method"] == "elicitation/create" and again["id"] != question["id"]
    second.cancel("enough")


async def test_a_task_that_becomes_unknown_ends_the_call_and_an_outage_of_the_store_does_not(on: Scene) -> None:
    on.failures = [UnknownTask()]
    assert (await answer_of(on.call()))["error"]["code"] == UnknownTask().code
    on.looks, on.failures = 0, [StoreUnavailable("gone")]
    call = on.call()
    on.ends()
    assert "result" in await answer_of(call) and on.looks == 2


@requirement("spec.priming")
async def test_the_stream_of_a_silent_wait_begins_as_that_of_any_call(on: Scene) -> None:
    call = on.call()
    reading = asyncio.ensure_future(call.replies.next(quiet_at=monotonic()))
    await asyncio.wait((reading,), timeout=60)
    assert reading.done() and isinstance(reading.exception(), TimeoutError), "which begins the stream"
    other = on.call()
    assert call.number != other.number, "each has its own stream, whatever its id"
    assert not call.is_over, "its task has its own time"
    for each in (call, other):
        each.cancel("enough")


async def answered(calls: list[Exchange], wanted: int) -> None:
    """Wait until so many of the calls are answered, and no more in the next turns of the event loop."""
    for _ in range(1_000):
        if sum(call.is_over for call in calls) >= wanted:
            break
        await asyncio.sleep(0)
    await turns(100)
    assert sum(call.is_over for call in calls) == wanted


async def test_many_calls_for_one_outcome_read_it_once_and_are_answered_as_their_client_reads(on: Scene) -> None:
    other = on.replica.live.of(msgspec.structs.replace(on.live.session, id="a third session"))
    calls, reader = [on.call() for _ in range(10)], on.call(other)
    await turns(200)
    assert on.looks == 11, "all of them have looked at the task, and wait"
    on.reads = 0
    on.ends(300_000)
    await answered(calls, 3)
    assert reader.is_over and on.reads == 1, "it does not wait for the client of another session"
    for done in range(1, 4):
        next(call for call in calls if call.is_over and call.ended is not None).done()  # the wire has sent it
        await answered(calls, 3 + done)
    for call in calls:
        if not call.is_over:
            call.cancel("the client has left")
        call.done()
    reader.done()
    assert "result" in await answer_of(on.call())


async def test_an_outcome_for_which_the_gateway_has_no_room_is_to_be_asked_for_again(on: Scene) -> None:
    on.bodies.reserve("someone", 1 << 30, 0)
    on.ends(300_000)
    assert (await answer_of(on.call()))["error"]["code"] == TOO_OFTEN
    on.bodies.release("someone", 1 << 30)
    assert "result" in await answer_of(on.call())


async def test_other_work_runs_between_the_answers_to_many_calls(on: Scene) -> None:
    calls = [on.call() for _ in range(50)]
    on.ends()
    most = before = 0
    async with asyncio.timeout(60):
        while before < len(calls):
            await asyncio.sleep(0)
            now = sum(call.is_over for call in calls)
            most, before = max(most, now - before), now
    assert most <= 2
