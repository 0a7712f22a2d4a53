"""When a connection may move, and when it stays."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.inbound.connection_handover import ANSWERED_BY, MOST_MOVES, ConnectionHandover

pytestmark = requirement("rep.workers")


def others(got: list[tuple[int, ...]]) -> Any:
    """Siblings that take everything."""

    def give(*given: int) -> bool:
        got.append(given)
        return True

    return SimpleNamespace(place_of={"one": 1}.get, give=give)


def transport(*, unsent: int = 0, **info: Any) -> asyncio.Transport:
    known = {"socket": SimpleNamespace(fileno=lambda: 7), **info}
    fake = SimpleNamespace(get_write_buffer_size=lambda: unsent, get_extra_info=known.get)
    return cast("asyncio.Transport", fake)


@pytest.mark.parametrize(
    ("scope", "place"),
    [({ANSWERED_BY: "one"}, 1), ({ANSWERED_BY: "of another machine"}, None), ({ANSWERED_BY: ""}, None), ({}, None)],
)
def test_it_goes_to_the_sibling_that_answered(scope: dict[str, str], place: int | None) -> None:
    assert ConnectionHandover(others([])).place_for(scope) == place


def test_it_moves_a_few_times_and_then_stays() -> None:
    got: list[tuple[int, ...]] = []
    moved = []
    for moves in range(MOST_MOVES + 2):
        connection = ConnectionHandover(others(got), moves)
        if (place := connection.place_for({ANSWERED_BY: "one"})) is not None:
            assert connection.give(transport(), place)
            moved.append(moves)
    assert moved == list(range(MOST_MOVES))
    for stays in (transport(unsent=1), transport(sslcontext=object())):  # a part of it is in this process
        assert not ConnectionHandover(others(got)).give(stays, 1)
    assert got == [(7, 1, moves + 1) for moves in moved]
