"""Lifecycles as tables: which event leads from which state to which. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

__all__ = ["IllegalStep", "step"]

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class IllegalStep(Exception):
    """The table has no such step. The state stays what it was."""


def step(table: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    """The state after `event`.

    Raises:
        IllegalStep: the event cannot happen in that state.
    """
    try:
        return table[state][event]
    except KeyError:
        raise IllegalStep(f"{event} is no step from {state}") from None
