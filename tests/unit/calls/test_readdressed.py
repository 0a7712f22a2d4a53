"""`gateway.calls.readdressed`: what comes while a client is away reaches it under its next request."""

import json
from typing import Any

import msgspec
import pytest

from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.readdressed import readdressed
from tests.requirements import requirement
from tests.support.fake_upstream import a_call
from transports.jsonrpc import encode, parse
from transports.reply_queue import Frame

pytestmark = pytest.mark.anyio

RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "a\nb"}]}}
ERROR = {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m"}}
LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}}


def progress(token: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 4}}


def message_of(frame: Frame | None) -> Any:
    return None if frame is None else json.loads(frame.data)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RESULT, RESULT | {"id": "two"}),
        (ERROR, ERROR | {"id": "two"}),
        (progress(1), progress(2)),
        (LOG, LOG),
    ],
)
def test_a_frame_names_the_later_request(before: Any, after: Any) -> None:
    frame = Frame(encode(before), final="id" in before, error_code=-1 if "error" in before else None)
    changed = readdressed("two", msgspec.Raw(b"2"))(frame)
    assert changed is not None and message_of(changed) == after
    assert (changed.final, changed.error_code) == (frame.final, frame.error_code)


def test_progress_that_the_later_request_does_not_want_is_left_out() -> None:
    assert readdressed(2, None)(Frame(encode(progress(1)))) is None


@requirement("spec.bridge")
async def test_a_call_that_ends_while_its_client_answers_is_answered_under_the_clients_next_request() -> None:
    """The server does not wait for its own question: progress and result come before the client's answers."""
    exchange = a_call()
    exchange.progress_token = msgspec.Raw(b"1")
    exchange.step(ExchangeEvent.SEND)
    exchange.suspendable()
    exchange.suspend({"resultType": msgspec.Raw(b'"input_required"')})
    exchange.emit(encode(progress(1)))
    exchange.finish(parse(encode(RESULT)))
    exchange.resume(2, None, msgspec.Raw(b"2"))
    assert message_of(await exchange.replies.next()) == progress(2)
    assert message_of(await exchange.replies.next()) == RESULT | {"id": 2}
    assert await exchange.replies.next() is None
