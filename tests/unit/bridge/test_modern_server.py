"""A legacy client's call to a modern server: each round is sent by the gateway, and each has an end."""

import pytest

from gateway.bridge.modern_server import ModernServerBridge
from gateway.errors import OUTCOME_UNKNOWN, STORE_UNAVAILABLE, TOO_OFTEN, too_many
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
