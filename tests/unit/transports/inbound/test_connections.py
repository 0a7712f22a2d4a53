"""The deadlines of connections: where looking at one of them fails, and where thousands are overdue together."""

import asyncio
from collections import Counter

import pytest

from tests.requirements import requirement
from transports.inbound.connections import Connections, Phase
from transports.inbound.limits import Limited, Limits


class Waiting:
    """A connection whose head does not come. One that is broken cannot be ended in the ordinary way."""

    def __init__(self, *, is_broken: bool) -> None:
        self.is_broken = is_broken
        self.cut_for: Limited | None = None
        self.was_dropped = False
        self.over = asyncio.Event()

    def standing(self) -> tuple[Phase, int]:
        return Phase.HEAD, 0

    def unsent(self) -> int:
        return 0

    def cut(self, kind: Limited | None) -> None:
        if self.is_broken:
            raise OSError(107, "Transport endpoint is not connected")
        self.cut_for = kind
        self.over.set()

    def drop(self) -> None:
        self.was_dropped = True
        self.over.set()


@requirement("wall.before-auth")
def test_a_connection_that_cannot_be_cut_ends_no_deadline_of_others() -> None:
    """A peer that resets a connection in the very moment when it is cut: the socket refuses to be shut down."""
    asyncio.run(_each_is_ended_in_time())


async def _each_is_ended_in_time() -> None:
    connections = Connections(Limits(head_timeout_s=0.1), Counter())
    for is_broken in (True, False):  # the second is let in after the first was looked at
        waiting = Waiting(is_broken=is_broken)
        connections.enter(waiting, "192.0.2.1")
        async with asyncio.timeout(5):
            await waiting.over.wait()
        assert (waiting.was_dropped, waiting.cut_for) == (is_broken, None if is_broken else Limited.HEAD_TIME)
    connections.close()


class Silent:
    """A connection that never says anything."""

    def __init__(self, turns: list[int], cut_in: list[int]) -> None:
        self._turns = turns
        self._cut_in = cut_in

    def standing(self) -> tuple[Phase, int]:
        return Phase.HEAD, 0

    def unsent(self) -> int:
        return 0

    def cut(self, kind: Limited | None) -> None:
        assert kind is Limited.HEAD_TIME
        self._cut_in.append(self._turns[0])

    def drop(self) -> None:
        raise AssertionError("it did not fail")


@requirement("wall.bystander", "wall.before-auth")
@pytest.mark.anyio
async def test_thousands_that_came_together_are_cut_in_many_turns_of_the_loop() -> None:
    turns, cut_in = [0], list[int]()
    connections = Connections(Limits(head_timeout_s=0.05), Counter())
    silent = [Silent(turns, cut_in) for _ in range(1_000)]
    for connection in silent:
        assert connections.enter(connection, "") is None
    async with asyncio.timeout(10):
        while len(cut_in) < len(silent):
            turns[0] += 1
            await asyncio.sleep(0)
    connections.close()
    assert max(cut_in.count(turn) for turn in set(cut_in)) <= 64
