"""The life of a link, as a table."""

from itertools import product

import pytest

from gateway.calls.link_state import LINK, LinkEvent, LinkState
from gateway.calls.state_table import IllegalStep, step


def test_every_state_is_reached_and_can_end() -> None:
    assert LINK.keys() == set(LinkState)
    assert {after for row in LINK.values() for after in row.values()} == set(LinkState)
    for state in LinkState:
        assert step(LINK, state, LinkEvent.END) is LinkState.ENDED


@pytest.mark.parametrize(("state", "event"), list(product(LinkState, LinkEvent)))
def test_a_step_is_in_the_table_or_an_error(state: LinkState, event: LinkEvent) -> None:
    if event in LINK[state]:
        assert step(LINK, state, event) is LINK[state][event]
    else:
        with pytest.raises(IllegalStep):
            step(LINK, state, event)
