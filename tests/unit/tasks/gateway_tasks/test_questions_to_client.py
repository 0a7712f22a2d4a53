"""The gateway follows a task that a server has made: it always ends, no answer is lost, no healthy task is ended. One
that an earlier process has followed is the same one, or it is lost, and nobody else's is touched."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest

from gateway.bridge.call_suspension import answer_suspended
from gateway.bridge.task_follower import pause_s, register_sent
from gateway.calls.lifecycles import ExchangeState
from gateway.calls.suspended_call import question_digest
from gateway.errors import CALL_TIMED_OUT, OUTCOME_UNKNOWN
from gateway.protocol.client_capabilities import declaration_in_meta
from gateway.protocol.tasks import MAX_ID_CHARS, TaskAtServer
from gateway.tasks.gateway_tasks.questions_to_client import Rounds, ServerTask
from gateway.tasks.gateway_tasks.stored_call import RecordedAnswers
from gateway.tasks.gateway_tasks.task_exchange import TaskExchange
from tests.requirements import requirement
from tests.support.fake_upstream import FakeLink, FakeUpstream, a_live
from tests.unit.calls.parts import turns
from tests.unit.tasks.parts import DECLARATION, WORKING, Server, Work, an_exchange
from transports.era import Era
from transports.jsonrpc import encode
from transports.upstream_port import LinkClosed

pytestmark = requirement("task.durable")
ASKS = {
    "status": "input_required",
    "pollIntervalMs": 1,
    "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}},
}
ELICITATION = {"message": msgspec.Raw(b'"?"'), "requestedSchema": msgspec.Raw(b"{}")}
CREATED = "2026-11-22T09:00:00Z"


class Followed:
    """A call whose task is followed. `lost` counts how often the server did not know the task of an earlier process."""

    lost = 0

    def __init__(self, task: Any = WORKING, recorded: dict[str, str] | None = None) -> None:
        self.exchange = an_exchange(a_live(era="modern"), declaration=DECLARATION)
        self.work, self.server = Work(self.exchange), Server()
        self.server.task = task
        self.exchange.run_as(self.work, 0, RecordedAnswers.of(recorded or {}))

    def begin(self, *, own_id: Any = "t", poll_ms: int = 1) -> "Followed":
        """Follow the task that the server has just made."""
        server = cast("Any", self.server)
        self.exchange.sent_as(server, 1, None, 0.0)
        created = {"taskId": msgspec.Raw(encode(own_id)), "pollIntervalMs": msgspec.Raw(encode(poll_ms))}
        ServerTask(self.exchange, self.work, server).begin(created)
        return self

    def resume(self) -> "Followed":
        """Follow a task that an earlier process has followed."""
        server = cast("Any", self.server)
        register_sent(server, self.exchange)
        ServerTask(self.exchange, self.work, server).resume(TaskAtServer("t", CREATED, Era.MODERN), self._lost)
        return self

    def _lost(self) -> None:
        self.lost += 1

    async def ended(self) -> None:
        await asyncio.wait(self.server.background, timeout=60)


Follow = Callable[..., Followed]


@pytest.fixture
async def call(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follow]:
    """Makes calls whose tasks are polled often."""
    for name in ("_LEAST_POLL_S", "_DEFAULT_POLL_S"):
        monkeypatch.setattr(f"gateway.bridge.task_follower.{name}", 0.001)
    monkeypatch.setattr("gateway.bridge.task_follower.pause_s", lambda failures: 0.001)
    made: list[Followed] = []

    def make(*given: Any) -> Followed:
        made.append(Followed(*given))
        return made[-1]

    yield make
    for task in [task for one in made for task in one.server.background]:
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
async def test_whatever_the_server_answers_no_task_waits_for_ever(call: Follow, task: Any, code: int | None) -> None:
    one = call(task).begin()
    if code is None:
        await one.server.until(2)
        assert not one.exchange.is_over
        return
    await one.ended()
    assert one.work.outcome["error"]["code"] == code
    is_over = isinstance(task, dict) and task["status"] in ("failed", "completed")
    assert ("tasks/cancel" in one.server.sent) is not is_over, "a task that cannot be read is cancelled"


async def test_a_lost_answer_is_sent_again_while_the_server_asks(call: Follow) -> None:
    def lost() -> None:
        raise LinkClosed("it exited")

    one = call(ASKS).begin()
    server, exchange = one.server, one.exchange
    server.update = lost
    await server.until(2)
    answer_suspended(exchange, {key: msgspec.Raw(b"{}") for key in exchange.suspendable().requests()})
    await server.until(2, "tasks/update")
    server.update = lambda: None
    since = exchange.deadline_from
    await server.until(2, "tasks/update")  # it still asks: it has forgotten the answer
    assert exchange.deadline_from == since, "nothing has changed: the deadline counts"
    assert one.work.asked == 1
    await server.says(WORKING)
    before = server.sent.count("tasks/update")
    await server.until(2)
    assert server.sent.count("tasks/update") == before
    assert exchange.deadline_from > since


async def test_questions_that_the_server_no_longer_lists_are_withdrawn(call: Follow) -> None:
    one = call().begin()
    for asked in (1, 2):
        await one.server.says(ASKS)
        assert one.exchange.is_suspended and one.work.asked == asked
        await one.server.says(WORKING)
        assert one.exchange.state is ExchangeState.SENT and not one.exchange.suspendable().questions


async def test_what_an_earlier_run_was_answered_is_not_asked_again(call: Follow) -> None:
    digest = question_digest("elicitation/create", ELICITATION)
    one = call(ASKS, {digest: '{"action":"accept","content":{}}'}).begin()
    await one.server.until(1, "tasks/update")
    assert (one.work.asked, one.exchange.state) == (0, ExchangeState.SENT) and not one.exchange.suspendable().questions
    await one.server.says(WORKING)
    await one.server.says(ASKS)
    assert one.work.asked == 1 and one.exchange.is_suspended, "an answer is given once"


async def test_a_cancelled_call_cancels_the_servers_task_at_once(call: Follow) -> None:
    one = call().begin(poll_ms=60_000)
    await turns(1)
    one.exchange.cancel("the client has cancelled the task")
    await one.ended()
    assert one.server.sent == ["tasks/cancel"]


@pytest.mark.parametrize("own_id", ["", "x" * (MAX_ID_CHARS + 1), None, 7])
async def test_a_task_whose_id_cannot_be_kept_is_not_followed(call: Follow, own_id: Any) -> None:
    one = call()
    with pytest.raises(msgspec.MsgspecError):
        one.begin(own_id=own_id)
    assert not one.server.background


@requirement("task.followed")
@pytest.mark.parametrize("created", [CREATED, "2026-11-22T09:00:00.25+00:00"])
async def test_the_task_of_an_earlier_process_is_followed(call: Follow, created: str) -> None:
    one = call({"status": "completed", "createdAt": created, "result": {"content": []}}).resume()
    await one.ended()
    assert one.work.outcome["result"] == {"content": []} and one.lost == 0
    assert one.server.sent == ["tasks/get"], "at once, and nothing is cancelled"


@requirement("task.followed")
@pytest.mark.parametrize("task", [{"status": "completed", "createdAt": "2026-11-22T09:01:00Z", "result": {}}, []])
async def test_another_task_of_that_id_is_not_followed_or_cancelled(call: Follow, task: Any) -> None:
    one = call(task).resume()
    await one.ended()
    assert one.lost == 1 and one.work.outcome is None and not one.exchange.is_over
    one.exchange.cancel("the client has cancelled the task")
    assert one.server.sent == ["tasks/get"]


@requirement("task.followed")
@pytest.mark.parametrize(("created", "is_cancelled"), [(CREATED, True), ("2026-11-22T09:01:00Z", False)])
async def test_a_task_is_cancelled_only_if_it_is_the_same(call: Follow, created: str, is_cancelled: bool) -> None:
    one = call(WORKING | {"createdAt": created}).resume()
    one.exchange.cancel("the client has cancelled the task")  # before the server was asked
    await turns(3)  # in which the call is done with
    assert len(one.server.background) == 2
    await one.ended()
    assert ("tasks/cancel" in one.server.sent) is is_cancelled


@requirement("task.followed")
async def test_a_task_that_the_next_owner_follows_is_not_cancelled(call: Follow) -> None:
    one = call(WORKING | {"createdAt": CREATED}).resume()
    await one.server.until(1)
    one.work.is_followed_elsewhere = True
    one.exchange.cancel("the gateway stops")
    await one.ended()
    assert "tasks/cancel" not in one.server.sent


@requirement("task.followed")
async def test_a_server_that_is_unavailable_for_a_moment_has_not_lost_its_task(call: Follow) -> None:
    assert sum(map(pause_s, range(1, 5))) == 15.0
    one = call(LinkClosed("restarting")).resume()
    await one.server.until(3)
    one.server.task = WORKING | {"createdAt": CREATED}
    await one.server.until(2)
    assert one.lost == 0 and not one.exchange.is_over


@requirement("task.followed")
def test_a_client_is_read_from_the_store_as_it_was() -> None:
    caller = declaration_in_meta(
        encode({"io.modelcontextprotocol/clientCapabilities": {"sampling": {}, "x": {"a": 1}}})
    )
    assert msgspec.json.decode(msgspec.json.encode(caller), type=type(caller)).key == caller.key


STATE = {"requestState": msgspec.Raw(b'"s"')}


async def asked(**recorded: str) -> tuple[Rounds, FakeLink, TaskExchange, Work]:
    """A call that its server answers with rounds, the link to the server, and the task of the call."""
    exchange, upstream = an_exchange(a_live(era="modern"), declaration=DECLARATION), FakeUpstream()
    work = Work(exchange)
    exchange.run_as(work, 0, RecordedAnswers.of(recorded))
    await upstream.conversation.start(exchange, {}, {})
    await sent_to(upstream.links[0])
    return Rounds(exchange, work), upstream.links[0], exchange, work


async def sent_to(link: FakeLink) -> Any:
    """The params of what the server is sent next."""
    await asyncio.wait_for(link.was_sent.wait(), 60)
    link.was_sent.clear()
    return link.sent[-1]["params"]


async def test_a_task_may_only_give_states_for_as_long_as_its_call_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Work, "call_s", -1.0)
    rounds, _, _, work = await asked()
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
