"""The tables of lifecycles, and the steps through them."""

from itertools import product

import pytest

from gateway.calls.lifecycles import (
    EXCHANGE,
    LINK,
    LIVE,
    OVER,
    ExchangeEvent,
    ExchangeState,
    IllegalStep,
    LinkEvent,
    LinkState,
    LiveEvent,
    LiveState,
    step,
)
from tests.support.fake_upstream import a_call

S, E = ExchangeState, ExchangeEvent
ENDS = (E.ANSWER, E.FAIL, E.CANCEL, E.ABANDON)


def test_an_exchange_can_end_in_every_state_and_only_once() -> None:
    assert EXCHANGE.keys() == set(S)
    for state, event in product(set(S) - OVER, ENDS):
        assert step(EXCHANGE, state, event) in OVER
    for state, event in product(OVER, ENDS):
        assert step(EXCHANGE, state, event) is state


def test_nothing_begins_anew_after_the_end() -> None:
    for state, event in product(OVER, set(E) - set(ENDS)):
        with pytest.raises(IllegalStep, match=f"{event} is no step from {state}"):
            step(EXCHANGE, state, event)
    call = a_call()
    for event in (E.ASK, E.RESUME, E.REQUEUE):
        with pytest.raises(IllegalStep):
            call.step(event)
        assert call.state is S.QUEUED, "an illegal step changes nothing"


def test_every_state_of_a_link_is_reached_and_can_end_and_a_session_that_has_ended_lives_nowhere_else() -> None:
    assert LINK.keys() == set(LinkState)
    assert {after for row in LINK.values() for after in row.values()} == set(LinkState)
    assert {step(LINK, state, LinkEvent.END) for state in LinkState} == {LinkState.ENDED}
    assert {step(LIVE, state, LiveEvent.END) for state in LiveState} == {LiveState.ENDED}
    assert set(LIVE[LiveState.ENDED].values()) == {LiveState.ENDED}
