"""In which order servers are asked, and how long one that hangs holds up the others."""

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest

from gateway.relay.in_turn import InTurn
from tests.requirements import requirement
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("ext.resource-owner")]

WAIT_S, WITHIN_S = 0.05, 0.4
NAMES = [f"s{n}" for n in range(9)]


class Servers:
    """Servers that have nothing, but for those named in `having`. Those in `hanging` never answer, `slow` ones once the
    last server has been asked, and `gone` ones cannot be asked."""

    def __init__(self, *, having: str = "", hanging: str = "", slow: str = "", gone: str = "") -> None:
        self.having, self.hanging, self.slow, self.gone = (each.split() for each in (having, hanging, slow, gone))
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.all_asked = asyncio.Event()

    async def ask(self, name: str) -> bool:
        self.asked.append(name)
        if name == NAMES[-1]:
            self.all_asked.set()
        try:
            if name in self.hanging:
                await asyncio.Event().wait()
            if name in self.slow:
                await self.all_asked.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if name in self.gone:
            raise UpstreamUnavailable("gone")
        return name in self.having


def search(servers: Servers, has: Callable[[bool], bool] = bool) -> InTurn[bool]:
    return InTurn(servers.ask, has, wait_s=WAIT_S, within_s=WITHIN_S)


async def test_the_first_is_asked_alone_and_the_others_in_groups() -> None:
    servers = Servers(having="s0 s1")
    assert await search(servers).first(NAMES) == ("s0", True) and servers.asked == ["s0"]
    servers = Servers(having="s3 s4")
    assert await search(servers).first(NAMES) == ("s3", True) and servers.asked == NAMES[:5]


async def test_nobody_has_it() -> None:
    servers, of_none = Servers(gone="s2"), Servers()
    found = search(servers)
    assert await found.first(NAMES) is None and servers.asked == NAMES and found.late == {"s2"}
    assert await search(of_none).first([]) is None


async def test_one_that_hangs_holds_up_nobody_for_long() -> None:
    servers = Servers(having="s8", hanging="s0 s2")
    found, began = search(servers), monotonic()
    assert await found.first(NAMES) == ("s8", True)
    assert monotonic() - began < WITHIN_S and servers.cancelled == ["s0", "s2"] == sorted(found.late)


async def test_one_that_is_slow_is_found_still() -> None:
    assert await search(Servers(having="s1", slow="s1")).first(NAMES) == ("s1", True)


async def test_all_that_hang_take_one_deadline_together() -> None:
    servers = Servers(hanging=" ".join(NAMES))
    found, began = search(servers), monotonic()
    assert await found.first(NAMES) is None
    assert WITHIN_S <= monotonic() - began < 3 * WITHIN_S and found.late == {*NAMES} == {*servers.cancelled}


async def test_an_error_that_is_not_the_servers_ends_the_search() -> None:
    servers = Servers()

    async def ask(name: str) -> bool:
        if name == "s1":
            raise RuntimeError("full")
        return await servers.ask(name)

    with pytest.raises(RuntimeError, match="full"):
        await InTurn(ask, bool, wait_s=WAIT_S, within_s=WITHIN_S).first(NAMES)
    assert "s5" not in servers.asked
