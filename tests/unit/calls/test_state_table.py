"""Steps through a table of states."""

from enum import StrEnum

import pytest

from gateway.calls.state_table import IllegalStep, step

Lamp = StrEnum("Lamp", "OFF ON")
Switch = StrEnum("Switch", "PRESS BREAK")
TABLE = {Lamp.OFF: {Switch.PRESS: Lamp.ON}, Lamp.ON: {Switch.PRESS: Lamp.OFF, Switch.BREAK: Lamp.OFF}}


def test_an_event_leads_to_the_state_of_the_table_or_is_an_error_that_names_it() -> None:
    assert step(TABLE, Lamp.OFF, Switch.PRESS) is Lamp.ON
    assert step(TABLE, Lamp.ON, Switch.BREAK) is Lamp.OFF
    with pytest.raises(IllegalStep, match="break is no step from off"):
        step(TABLE, Lamp.OFF, Switch.BREAK)
