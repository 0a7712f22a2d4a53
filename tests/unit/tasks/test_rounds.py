"""What bounds the rounds of a task: its questions by their number, repetitions without questions by time."""

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.bridge import round_trips
from gateway.bridge.suspended_calls import answer_suspended
from gateway.calls.live_session import LiveSession
from gateway.calls.suspended_call import question_digest
from gateway.errors import CALL_TIMED_OUT
from gateway.protocol.capabilities import caller_of_meta
from gateway.tasks.exchange import TaskExchange
from gateway.tasks.recorded_answers import RecordedAnswers
from gateway.tasks.rounds import MAX_ROUNDS, Rounds
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, answer_of
from transports.jsonrpc import encode
from transports.reply_queue import ReplyQueue

pytestmark = [pytest.mark.anyio, requirement("task.durable")]
STATE = {"requestState": msgspec.Raw(b'"s"')}


async def test_a_healthy_task_may_only_give_states_for_as_long_as_its_call_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [monotonic()]
    monkeypatch.setattr(round_trips, "monotonic", lambda: now[0])
    monkeypatch.setattr(Rounds, "poll_s", 0.0)
    live = LiveSession(a_session(FakeClock(), era="modern"), MemoryBackend().events)
    exchange = TaskExchange(
        method="tools/call", client_id=1, live=live, replies=ReplyQueue(), caller=caller_of_meta(b"{}")
    )
    upstream = FakeUpstream()
    await upstream.conversation.start(exchange, {}, {})
    link = upstream.links[0]
    asked = Rounds(exchange, cast("Any", SimpleNamespace(call_s=3600.0, answer_s=600.0)))
    for _ in range(MAX_ROUNDS + 5):
        link.was_sent.clear()
        asked.ask(STATE)
        await asyncio.wait_for(link.was_sent.wait(), 5)
    assert not exchange.is_over
    now[0] += 3601.0
    asked.ask(STATE)
    assert (await answer_of(exchange))["error"]["code"] == CALL_TIMED_OUT


def asks(*messages: str) -> Any:
    questions = {text: {"method": "elicitation/create", "params": {"message": text}} for text in messages}
    return STATE | {"inputRequests": msgspec.Raw(encode(questions))}


async def test_a_round_asks_only_what_an_earlier_run_was_not_answered() -> None:
    live = LiveSession(a_session(FakeClock(), era="modern"), MemoryBackend().events)
    caller = caller_of_meta(b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}')
    exchange = TaskExchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue(), caller=caller)
    asked: list[str] = []
    work: Any = SimpleNamespace(
        call_s=3600.0, answer_s=600.0, log_facts={}, receive=asked.append, asks=lambda: asked.append("asks")
    )
    name = {text: question_digest("elicitation/create", {"message": msgspec.Raw(encode(text))}) for text in "ab"}
    exchange.run_as(work, 0, RecordedAnswers.of({digest: f'"{text}"' for text, digest in name.items()}))
    upstream = FakeUpstream()
    await upstream.conversation.start(exchange, {}, {})
    link, rounds = upstream.links[0], Rounds(exchange, work)
    link.was_sent.clear()
    rounds.ask(asks("a"))
    await asyncio.wait_for(link.was_sent.wait(), 5)
    assert link.sent[-1]["params"]["inputResponses"] == {"a": "a"} and not asked
    link.was_sent.clear()
    rounds.ask(asks("b", "c"))
    assert asked == ["asks"] and exchange.is_suspended
    ((key, question),) = exchange.suspendable().questions.items()
    assert question.params == {"message": msgspec.Raw(b'"c"')}
    answer_suspended(exchange, {key: msgspec.Raw(b'"c"')})
    await asyncio.wait_for(link.was_sent.wait(), 5)
    assert link.sent[-1]["params"]["inputResponses"] == {"b": "b", "c": "c"}
