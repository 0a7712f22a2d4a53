"""The gateway follows a task that a server has made: it always ends, no answer is lost, no healthy task is ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, cast

import msgspec
import pytest

from gateway.bridge import round_trips
from gateway.bridge.suspended_calls import answer_suspended
from gateway.calls.lifecycles import ExchangeState
from gateway.calls.suspended_call import question_digest
from gateway.errors import CALL_TIMED_OUT, OUTCOME_UNKNOWN
from gateway.protocol.tasks import MAX_ID_CHARS
from gateway.tasks.made.exchange import TaskExchange
from gateway.tasks.made.questions import MAX_ROUNDS, Rounds, ServerTask
from gateway.tasks.made.stored_call import RecordedAnswers
from tests.requirements import requirement
from tests.support.fake_upstream import FakeLink, FakeUpstream, a_live
from tests.unit.tasks.parts import CALLER, WORKING, Server, Work, an_exchange
from transports.jsonrpc import encode
from transports.upstream_port import LinkClosed

pytestmark = [pytest.mark.anyio, requirement("task.durable")]
ASKS = {
    "status": "input_required",
    "pollIntervalMs": 1,
    "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}},
}
ELICITATION = {"message": msgspec.Raw(b'"?"'), "requestedSchema": msgspec.Raw(b"{}")}


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LEAST_POLL_S", "_DEFAULT_POLL_S"):
        monkeypatch.setattr(f"gateway.bridge.task_follower.{name}", 0.001)
    monkeypatch.setattr("gateway.bridge.task_follower.pause_s", lambda failures: 0.001)


@asynccontextmanager
async def followed(
    recorded: dict[str, str] | None = None, *, poll_ms: int = 1
) -> AsyncIterator[tuple[Server, TaskExchange, Work]]:
    exchange = an_exchange(a_live(era="modern"), caller=CALLER)
    work, server = Work(exchange), Server()
    exchange.run_as(work, 0, RecordedAnswers.of(recorded or {}))
    exchange.sent_as(cast("Any", server), 1, None, 0.0)
    created = {"taskId": msgspec.Raw(b'"t"'), "pollIntervalMs": msgspec.Raw(encode(poll_ms))}
    ServerTask(exchange, work, cast("Any", server)).begin(created)
    await asyncio.sleep(0)
    yield server, exchange, work
    for task in server.background:
        task.cancel()


@pytest.mark.parametrize(
    ("task", "code"),
    [
        ({"status": "failed"}, -32603),
        ({"status": "failed", "error": None}, -32603),
        ({"status": "failed", "error": "text"}, OUTCOME_UNKNOWN),
        ({"status": "completed"}, OUTCOME_UNKNOWN),
        ({"status": "working", "inputRequests": [], "statusMessage": 1, "pollIntervalMs": "x"}, None),
        ({"status": "input_required", "inputRequests": []}, OUTCOME_UNKNOWN),
        (RuntimeError("unexpected"), OUTCOME_UNKNOWN),
        (RecursionError("too deep"), OUTCOME_UNKNOWN),
    ],
)
async def test_whatever_the_server_answers_no_task_waits_for_ever(task: Any, code: int | None) -> None:
    async with followed() as (server, exchange, work):
        server.task = task
        await server.until(1)
        if code is None:
            await server.until(1)
            assert not exchange.is_over
            return
        await asyncio.wait_for(server.background[0], 5)
        assert work.outcome["error"]["code"] == code
        is_over = isinstance(task, dict) and task["status"] in ("failed", "completed")
        assert ("tasks/cancel" in server.sent) is not is_over, "a task that cannot be read is cancelled"


async def test_a_lost_answer_is_sent_again_while_the_server_asks() -> None:
    async with followed() as (server, exchange, work):
        server.task = ASKS

        def lost() -> None:
            raise LinkClosed("it exited")

        server.update = lost
        await server.until(2)
        answer_suspended(exchange, {key: msgspec.Raw(b"{}") for key in exchange.suspendable().requests()})
        await server.until(2, "tasks/update")
        server.update = lambda: None
        since = exchange.deadline_from
        await server.until(2, "tasks/update")  # it still asks: it has forgotten the answer
        assert exchange.deadline_from == since, "nothing has changed: the deadline counts"
        assert work.asked == 1
        await server.says(WORKING)
        before = server.sent.count("tasks/update")
        await server.until(2)
        assert server.sent.count("tasks/update") == before
        assert exchange.deadline_from > since


async def test_questions_that_the_server_no_longer_lists_are_withdrawn() -> None:
    async with followed() as (server, exchange, work):
        await server.says(ASKS)
        assert exchange.is_suspended
        await server.says(WORKING)
        assert exchange.state is ExchangeState.SENT and not exchange.suspendable().questions
        await server.says(ASKS)
        assert exchange.is_suspended and work.asked == 2


async def test_what_an_earlier_run_was_answered_is_not_asked_again() -> None:
    answer = '{"action":"accept","content":{}}'
    recorded = {question_digest("elicitation/create", ELICITATION): answer}
    async with followed(recorded) as (server, exchange, work):
        server.task = ASKS
        await server.until(1, "tasks/update")
        assert (work.asked, exchange.state) == (0, ExchangeState.SENT) and not exchange.suspendable().questions
        await server.says(WORKING)
        await server.says(ASKS)
        assert work.asked == 1 and exchange.is_suspended, "an answer is given once"


async def test_a_cancelled_call_cancels_the_servers_task_at_once() -> None:
    async with followed(poll_ms=60_000) as (server, exchange, _):
        exchange.cancel("the client has cancelled the task")
        await asyncio.wait(server.background, timeout=5)
        assert server.sent == ["tasks/cancel"]


@pytest.mark.parametrize("own_id", ["", "x" * (MAX_ID_CHARS + 1), None, 7])
async def test_a_task_whose_id_cannot_be_kept_is_not_followed(own_id: Any) -> None:
    async with followed() as (server, exchange, work):
        before = len(server.background)
        with pytest.raises(msgspec.MsgspecError):
            ServerTask(exchange, work, cast("Any", server)).begin({"taskId": msgspec.Raw(encode(own_id))})
        assert len(server.background) == before


STATE = {"requestState": msgspec.Raw(b'"s"')}


async def asked(**recorded: str) -> tuple[Rounds, FakeLink, TaskExchange, Work]:
    """A call that its server answers with rounds, the link to the server, and the task of the call."""
    exchange, upstream = an_exchange(a_live(era="modern"), caller=CALLER), FakeUpstream()
    work = Work(exchange)
    exchange.run_as(work, 0, RecordedAnswers.of(recorded))
    await upstream.conversation.start(exchange, {}, {})
    await sent_to(upstream.links[0])
    return Rounds(exchange, work), upstream.links[0], exchange, work


async def sent_to(link: FakeLink) -> Any:
    """The params of what the server is sent next."""
    await asyncio.wait_for(link.was_sent.wait(), 5)
    link.was_sent.clear()
    return link.sent[-1]["params"]


async def test_a_healthy_task_may_only_give_states_for_as_long_as_its_call_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [monotonic()]
    monkeypatch.setattr(round_trips, "monotonic", lambda: now[0])
    monkeypatch.setattr(Rounds, "poll_s", 0.0)
    rounds, link, exchange, work = await asked()
    for _ in range(MAX_ROUNDS + 5):
        rounds.ask(STATE)
        await sent_to(link)
    assert not exchange.is_over
    now[0] += 3601.0
    rounds.ask(STATE)
    assert work.outcome["error"]["code"] == CALL_TIMED_OUT


async def test_a_round_asks_only_what_an_earlier_run_was_not_answered() -> None:
    def asks(*messages: str) -> Any:
        questions = {text: {"method": "elicitation/create", "params": {"message": text}} for text in messages}
        return STATE | {"inputRequests": msgspec.Raw(encode(questions))}

    digests = [question_digest("elicitation/create", {"message": msgspec.Raw(encode(text))}) for text in "ab"]
    rounds, link, exchange, work = await asked(**dict(zip(digests, ('"a"', '"b"'), strict=True)))
    rounds.ask(asks("a"))
    assert ((await sent_to(link))["inputResponses"], work.asked) == ({"a": "a"}, 0)
    rounds.ask(asks("b", "c"))
    assert work.asked == 1 and exchange.is_suspended
    ((key, question),) = exchange.suspendable().questions.items()
    assert question.params == {"message": msgspec.Raw(b'"c"')}
    answer_suspended(exchange, {key: msgspec.Raw(b'"c"')})
    assert (await sent_to(link))["inputResponses"] == {"b": "b", "c": "c"}
