"""What an exchange does on its way: its end, its client's questions, its frames for the server and for the client."""

import json
from typing import Any

import msgspec
import pytest

from gateway.calls.lifecycles import ExchangeEvent, ExchangeState
from gateway.calls.suspended_call import rewritten_ids
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.observability.outcome import Outcome
from tests.requirements import requirement
from tests.support.fake_upstream import a_call
from transports.jsonrpc import Object, encode, parse
from transports.reply_queue import Frame

S, E = ExchangeState, ExchangeEvent
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "a\nb"}]}}
ERROR = {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "m"}}
LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": 1}}


def progress(token: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 4}}


def message_of(frame: Frame | None) -> Any:
    return None if frame is None else json.loads(frame.data)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda call: call.settle(parse(encode(RESULT))), S.ANSWERED),
        (lambda call: call.settle(parse(encode(ERROR))), S.ANSWERED),
        (lambda call: call.fail(OUTCOME_UNKNOWN, "it is gone"), S.FAILED),
        (lambda call: call.fail(CANCELLED, "the client left"), S.CANCELLED),
        (lambda call: call.abandon(), S.ABANDONED),
    ],
)
def test_the_first_end_counts(end, state: ExchangeState) -> None:  # type: ignore[no-untyped-def]
    call, outcomes = a_call(), list[Outcome]()
    call.watch(lambda _, outcome, __: outcomes.append(outcome))
    call.step(E.SEND)
    end(call)
    assert call.is_over and call.state is state
    frames = 0 if state is S.ABANDONED else 1
    assert len(outcomes) == frames
    call.fail(OUTCOME_UNKNOWN, "once more")
    call.settle(parse(encode(RESULT)))
    assert call.state is state and len(outcomes) == frames


def test_a_call_waits_for_its_client_and_releases_what_it_holds_at_its_end() -> None:
    call, released = a_call(), []
    call.when_done(lambda: released.append("session"))
    call.step(E.SEND)
    first = call.replies
    call.suspendable()
    call.suspend({})
    assert call.replies is not first and first.is_closed
    for _ in range(2):
        call.resumed()
        assert call.state is S.SENT
    call.suspend({})
    assert call.is_suspended and not released
    call.fail(OUTCOME_UNKNOWN, "the server is gone")
    call.done()
    assert released == ["session"] and not call.is_suspended


def test_an_answer_of_an_earlier_round_is_given_once() -> None:
    call = a_call()
    call.replay = {"a": "1", "b": "2"}
    assert (call.take_replay("a"), call.take_replay("a"), call.take_replay("b")) == ("1", None, "2")


def test_a_call_has_its_number_as_progress_token_at_the_server() -> None:
    call = a_call()
    meta: Object = {"progressToken": msgspec.Raw(b'"theirs"'), "x": msgspec.Raw(b"1")}
    frame = call.frame(5, {"name": msgspec.Raw(b'"t"')}, meta)
    sent = msgspec.json.decode(frame)
    assert (sent["id"], sent["method"]) == (5, "tools/call")
    assert sent["params"] == {"name": "t", "_meta": {"progressToken": 5, "x": 1}}
    assert call.progress_token is not None and bytes(call.progress_token) == b'"theirs"'
    plain = a_call()
    assert msgspec.json.decode(plain.frame(1, {}, {})) == {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    assert plain.progress_token is None


def test_callbacks_run_once_and_the_last_one_first() -> None:
    call, called = a_call(), list[str]()
    for name in ("first", "second"):
        call.when_done(lambda name=name: called.append(name))  # type: ignore[misc]
    assert called == []
    for _ in range(2):
        call.done()
    assert called == ["second", "first"]
    call.when_done(lambda: called.append("again"))
    call.done()
    assert called[2:] == ["again"], "after the end of an earlier use"


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
    changed = rewritten_ids("two", msgspec.Raw(b"2"))(frame)
    assert changed is not None and message_of(changed) == after
    assert (changed.final, changed.error_code) == (frame.final, frame.error_code)


def test_progress_that_the_later_request_does_not_want_is_left_out() -> None:
    assert rewritten_ids(2, None)(Frame(encode(progress(1)))) is None


@pytest.mark.anyio
@requirement("spec.bridge")
async def test_a_call_that_ends_while_its_client_answers_is_answered_under_the_clients_next_request() -> None:
    """The server does not wait for its own question: progress and result come before the client's answers."""
    exchange = a_call()
    exchange.progress_token = msgspec.Raw(b"1")
    exchange.step(E.SEND)
    exchange.suspendable()
    exchange.suspend({"resultType": msgspec.Raw(b'"input_required"')})
    exchange.emit(encode(progress(1)))
    exchange.finish(parse(encode(RESULT)))
    exchange.resume(2, None, msgspec.Raw(b"2"))
    assert message_of(await exchange.replies.next()) == progress(2)
    assert message_of(await exchange.replies.next()) == RESULT | {"id": 2}
    assert await exchange.replies.next() is None
