"""A call that is sent from the background and cannot be sent is answered, whatever the reason."""

import msgspec
import pytest

from gateway.calls.failed_start import fail_start
from gateway.errors import OUTCOME_UNKNOWN, STORE_UNAVAILABLE, TOO_OFTEN, too_many
from gateway.protocol.handshake import HandshakeRefused
from session_store import StoreUnavailable
from tests.support.fake_upstream import FakeUpstream, a_call, answer_of
from transports.jsonrpc import encode
from transports.upstream_port import LinkClosed, UpstreamUnavailable

pytestmark = pytest.mark.anyio

QUOTA = too_many("server processes", 3, anonymous=False)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (QUOTA, TOO_OFTEN, str(QUOTA)),
        (StoreUnavailable("redis is gone"), STORE_UNAVAILABLE, "The session store does not answer"),
        (UpstreamUnavailable("it does not start"), OUTCOME_UNKNOWN, "it does not start"),
        (LinkClosed("it exited"), OUTCOME_UNKNOWN, "it exited"),
        (HandshakeRefused(msgspec.Raw(encode({"code": -1, "message": "no"}))), -1, "no"),
        (RuntimeError("a secret detail"), OUTCOME_UNKNOWN, "the call could not be sent to server 'fake'"),
    ],
)
async def test_the_client_gets_an_answer_that_tells_the_reason(error: Exception, code: int, said: str) -> None:
    exchange = a_call()
    fail_start(FakeUpstream().conversation, exchange, error, OUTCOME_UNKNOWN)
    answer = (await answer_of(exchange))["error"]
    assert answer["code"] == code and said in answer["message"] and "secret" not in answer["message"]
    assert exchange.is_over
