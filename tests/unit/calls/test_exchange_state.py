"""The table of an exchange, and what an exchange does with it."""

from itertools import product

import msgspec
import pytest

from gateway.calls.exchange_state import EXCHANGE, OVER, TIMED_BY, Clock, ExchangeEvent, ExchangeState
from gateway.calls.state_table import IllegalStep, step
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.observability.outcome import Outcome
from tests.support.fake_upstream import a_call
from transports.jsonrpc import Object, parse

S, E = ExchangeState, ExchangeEvent
ENDS = (E.ANSWER, E.FAIL, E.CANCEL, E.ABANDON)
RESULT = parse(b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}')
ERROR = parse(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}')
ASKED: Object = {}


def test_an_exchange_can_end_or_time_out_in_every_state_and_only_once() -> None:
    assert EXCHANGE.keys() == TIMED_BY.keys() == set(S)
    assert {state for state, clock in TIMED_BY.items() if clock is Clock.NOBODY} == OVER
    for state, event in product(set(S) - OVER, ENDS):
        assert step(EXCHANGE, state, event) in OVER
    for state, event in product(OVER, ENDS):
        assert step(EXCHANGE, state, event) is state


def test_nothing_begins_anew_after_the_end() -> None:
    for state, event in product(OVER, set(E) - set(ENDS)):
        with pytest.raises(IllegalStep):
            step(EXCHANGE, state, event)
    call = a_call()
    for event in (E.ASK, E.RESUME, E.REQUEUE):
        with pytest.raises(IllegalStep):
            call.step(event)
        assert call.state is S.QUEUED, "an illegal step changes nothing"


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda call: call.settle(RESULT), S.ANSWERED),
        (lambda call: call.settle(ERROR), S.ANSWERED),
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
    call.settle(RESULT)
    assert call.state is state and len(outcomes) == frames


def test_a_call_waits_for_its_client_and_releases_what_it_holds_at_its_end() -> None:
    call, released = a_call(), []
    call.when_done(lambda: released.append("session"))
    call.step(E.SEND)
    first = call.replies
    call.suspendable()
    call.suspend(dict(ASKED))
    assert call.replies is not first and first.is_closed
    for _ in range(2):
        call.resumed()
        assert call.state is S.SENT
    call.suspend(dict(ASKED))
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
