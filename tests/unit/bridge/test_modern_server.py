"""A legacy client's call to a modern server: each round is sent by the gateway, and each has an end."""

import asyncio
from time import monotonic

import pytest

from gateway.bridge import round_trips
from gateway.bridge.modern_server import MAX_ROUNDS, CallRounds, ModernServerBridge
from gateway.errors import CALL_TIMED_OUT, OUTCOME_UNKNOWN, STORE_UNAVAILABLE, TOO_OFTEN, too_many
from session_store import StoreUnavailable
from tests.support.fake_upstream import FakeUpstream, a_call, answer_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (too_many("server processes", 3, anonymous=False), TOO_OFTEN),
        (StoreUnavailable("redis is gone"), STORE_UNAVAILABLE),
        (RuntimeError("unexpected"), OUTCOME_UNKNOWN),
    ],
)
async def test_a_round_that_cannot_be_sent_ends_the_call(error: Exception, code: int) -> None:
    upstream, exchange = FakeUpstream(), a_call()
    exchange.use_bridge(ModernServerBridge(upstream.conversation, {}, {}))
    await upstream.conversation.start(exchange, {}, {})
    link = upstream.links[0]
    link.answer({"resultType": "input_required", "requestState": "1"})
    upstream.error = error
    await link.close()
    assert (await answer_of(exchange))["error"]["code"] == code
    assert exchange.is_over and not upstream.conversation.has_calls


async def test_a_call_that_is_repeated_without_questions_is_bounded_by_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [monotonic()]
    monkeypatch.setattr(round_trips, "monotonic", lambda: now[0])
    upstream, exchange = FakeUpstream(), a_call()
    bridge = ModernServerBridge(upstream.conversation, {}, {})
    exchange.use_bridge(bridge)
    await upstream.conversation.start(exchange, {}, {})
    link = upstream.links[0]
    monkeypatch.setattr(CallRounds, "poll_s", 0.0)
    for _ in range(MAX_ROUNDS + 5):
        link.was_sent.clear()
        link.answer({"resultType": "input_required", "requestState": "1"})
        await asyncio.wait_for(link.was_sent.wait(), 5)
    assert not exchange.is_over
    now[0] += upstream.conversation.deadlines.call_s + 1
    link.answer({"resultType": "input_required", "requestState": "1"})
    assert (await answer_of(exchange))["error"]["code"] == CALL_TIMED_OUT
