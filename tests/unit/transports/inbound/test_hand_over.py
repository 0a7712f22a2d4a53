"""When a connection may move, and when it stays."""

import asyncio
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.inbound.hand_over import ANSWERED_BY, MOST_MOVES, HandOver


class Others:
    """Siblings that take everything."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int, int]] = []

    def place_of(self, owner: str) -> int | None:
        return {"one": 1}.get(owner)

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        self.got.append((descriptor, place, moves))
        return True


class Transport:
    def __init__(self, *, unsent: int = 0, **info: Any) -> None:
        self._unsent = unsent
        self._info = {"socket": self, **info}

    def fileno(self) -> int:
        return 7

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def get_extra_info(self, name: str) -> Any:
        return self._info.get(name)


@requirement("rep.workers")
@pytest.mark.parametrize(
    ("scope", "place"),
    [({ANSWERED_BY: "one"}, 1), ({ANSWERED_BY: "of another machine"}, None), ({ANSWERED_BY: ""}, None), ({}, None)],
)
def test_it_goes_to_the_sibling_that_answered(scope: dict[str, str], place: int | None) -> None:
    assert HandOver(Others()).place_for(scope) == place


@requirement("rep.workers")
def test_it_moves_a_few_times_and_then_stays() -> None:
    others, moved = Others(), []
    for moves in range(MOST_MOVES + 2):
        connection = HandOver(others, moves)
        if (place := connection.place_for({ANSWERED_BY: "one"})) is not None:
            assert connection.give(cast("asyncio.Transport", Transport()), place)
            moved.append(moves)
    assert moved == list(range(MOST_MOVES))
    assert others.got == [(7, 1, moves + 1) for moves in moved]


@requirement("rep.workers")
@pytest.mark.parametrize("transport", [Transport(unsent=1), Transport(sslcontext=object())])
def test_it_stays_while_a_part_of_it_is_in_this_process(transport: Transport) -> None:
    others = Others()
    assert not HandOver(others).give(cast("asyncio.Transport", transport), 1)
    assert others.got == []
