"""Steps through a table of states."""

from enum import StrEnum

import pytest

from gateway.calls.state_table import IllegalStep, step


class Lamp(StrEnum):
    OFF = "off"
    ON = "on"


class Switch(StrEnum):
    PRESS = "press"
    BREAK = "break"


TABLE = {Lamp.OFF: {Switch.PRESS: Lamp.ON}, Lamp.ON: {Switch.PRESS: Lamp.OFF, Switch.BREAK: Lamp.OFF}}


def test_an_event_leads_to_the_state_of_the_table() -> None:
    assert step(TABLE, Lamp.OFF, Switch.PRESS) is Lamp.ON
    assert step(TABLE, Lamp.ON, Switch.BREAK) is Lamp.OFF


def test_a_step_that_the_table_does_not_have_is_an_error_that_names_it() -> None:
    with pytest.raises(IllegalStep, match="break is no step from off"):
        step(TABLE, Lamp.OFF, Switch.BREAK)
