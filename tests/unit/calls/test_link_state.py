"""The life of a link, as a table."""

from gateway.calls.link_state import LINK, LinkEvent, LinkState
from gateway.calls.state_table import step


def test_every_state_is_reached_and_can_end() -> None:
    assert LINK.keys() == set(LinkState)
    assert {after for row in LINK.values() for after in row.values()} == set(LinkState)
    for state in LinkState:
        assert step(LINK, state, LinkEvent.END) is LinkState.ENDED
