"""The calls of one conversation: each has one end, whatever becomes of its link."""

import pytest

from gateway.errors import CANCELLED, TOO_OFTEN, too_many
from tests.support.fake_upstream import FakeUpstream, a_call, answer_of

pytestmark = pytest.mark.anyio


async def test_a_call_that_may_not_be_sent_again_is_answered() -> None:
    upstream, exchange = FakeUpstream(), a_call()
    await upstream.conversation.start(exchange, {}, {})
    upstream.error = too_many("server processes", 3, anonymous=False)
    upstream.conversation.unsent(upstream.links[0], exchange.number, "the server has forgotten the session")
    assert (await answer_of(exchange))["error"]["code"] == TOO_OFTEN
    assert not upstream.conversation.has_calls


async def test_a_cancellation_answers_a_call_that_is_no_longer_in_flight() -> None:
    upstream, exchange = FakeUpstream(), a_call()
    await upstream.conversation.start(exchange, {}, {})
    upstream.conversation.calls.end(exchange)
    exchange.cancel("the session has ended")
    assert (await answer_of(exchange))["error"]["code"] == CANCELLED
    assert [message["method"] for message in upstream.links[0].sent] == ["tools/call"]
