"""The deadlines of connections: where looking at one of them fails, and where thousands are overdue together."""

import asyncio
from collections import Counter

import pytest

from tests.requirements import requirement
from transports.inbound.connections import Connections, Phase
from transports.inbound.unauthenticated_limits import Limited, Limits

pytestmark = requirement("wall.before-auth")


class Waiting:
    """A connection whose head does not come. One that is broken cannot be ended in the ordinary way. Notes in which
    turns of the loop it was ended, and how."""

    turn = 0

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.ends: list[tuple[int, Limited | str | None]] = []
        self.over = asyncio.Event()

    def progress(self) -> tuple[Phase, int]:
        return Phase.HEAD, 0

    def unsent(self) -> int:
        return 0

    def cut(self, kind: Limited | None) -> None:
        if self.is_broken:
            raise OSError(107, "Transport endpoint is not connected")
        self._end(kind)

    def drop(self) -> None:
        self._end("dropped")

    def _end(self, how: Limited | str | None) -> None:
        self.ends.append((Waiting.turn, how))
        self.over.set()


async def test_a_connection_that_cannot_be_cut_ends_no_deadline_of_others() -> None:
    """A peer that resets a connection in the very moment when it is cut: the socket refuses to be shut down."""
    connections = Connections(Limits(head_timeout_s=0.1), Counter())
    for is_broken in (True, False):  # the second is let in after the first was looked at
        waiting = Waiting(is_broken=is_broken)
        connections.enter(waiting, "192.0.2.1")
        async with asyncio.timeout(60):
            await waiting.over.wait()
        assert {how for _, how in waiting.ends} == {"dropped" if is_broken else Limited.HEAD_TIME}
    connections.close()


async def test_a_stall_of_the_event_loop_counts_against_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop runs overdue timers before it reads what clients have sent during the stall."""
    connections, waiting = Connections(Limits(head_timeout_s=0.2), Counter()), Waiting()
    connections.enter(waiting, "192.0.2.1")
    loop = asyncio.get_running_loop()
    time_before_the_stall = loop.time
    monkeypatch.setattr(loop, "time", lambda: time_before_the_stall() + 0.5)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.ends
    async with asyncio.timeout(60):
        await waiting.over.wait()
    assert waiting.ends == [(Waiting.turn, Limited.HEAD_TIME)]
    connections.close()


@requirement("wall.bystander")
async def test_thousands_that_came_together_are_cut_in_many_turns_of_the_loop() -> None:
    connections = Connections(Limits(head_timeout_s=0.05), Counter())
    waiting = [Waiting() for _ in range(1_000)]
    assert [connections.enter(each, "") for each in waiting] == [None] * 1_000
    async with asyncio.timeout(60):
        while not all(each.ends for each in waiting):
            Waiting.turn += 1
            await asyncio.sleep(0)
    connections.close()
    ends = [end for each in waiting for end in each.ends]
    assert {how for _, how in ends} == {Limited.HEAD_TIME}
    assert max(Counter(turn for turn, _ in ends).values()) <= 64
