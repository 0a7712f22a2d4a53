"""When a connection may move, and when it stays."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.inbound.hand_over import ANSWERED_BY, MOST_MOVES, HandOver

pytestmark = requirement("rep.workers")


class Others:
    """Siblings that take everything."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int, int]] = []

    def place_of(self, owner: str) -> int | None:
        return {"one": 1}.get(owner)

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        self.got.append((descriptor, place, moves))
        return True


def transport(*, unsent: int = 0, **info: Any) -> asyncio.Transport:
    known = {"socket": SimpleNamespace(fileno=lambda: 7), **info}
    fake = SimpleNamespace(get_write_buffer_size=lambda: unsent, get_extra_info=known.get)
    return cast("asyncio.Transport", fake)


@pytest.mark.parametrize(
    ("scope", "place"),
    [({ANSWERED_BY: "one"}, 1), ({ANSWERED_BY: "of another machine"}, None), ({ANSWERED_BY: ""}, None), ({}, None)],
)
def test_it_goes_to_the_sibling_that_answered(scope: dict[str, str], place: int | None) -> None:
    assert HandOver(Others()).place_for(scope) == place


def test_it_moves_a_few_times_and_then_stays() -> None:
    others, moved = Others(), []
    for moves in range(MOST_MOVES + 2):
        connection = HandOver(others, moves)
        if (place := connection.place_for({ANSWERED_BY: "one"})) is not None:
            assert connection.give(transport(), place)
            moved.append(moves)
    assert moved == list(range(MOST_MOVES))
    assert others.got == [(7, 1, moves + 1) for moves in moved]


def test_it_stays_while_a_part_of_it_is_in_this_process() -> None:
    others = Others()
    for stays in (transport(unsent=1), transport(sslcontext=object())):
        assert not HandOver(others).give(stays, 1)
    assert others.got == []
