"""Names are looked up in a bounded number of threads."""

import asyncio
import socket
import threading

import pytest

from gateway.sandbox.lookup_turns import MAX_WAITING
from gateway.sandbox.lookups import MAX_THREADS, Found, Lookups, addresses_of
from tests.requirements import requirement
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, requirement("box.names")]


class Names:
    """A resolver that answers when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked: list[str] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, name: str) -> list[str]:
        with self._lock:
            self.asked.append(name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        if name.startswith("slow"):
            assert self.let.wait(30)
        with self._lock:
            self.at_once -= 1
        if name.startswith("none"):
            raise socket.gaierror(socket.EAI_NONAME, "none")
        if name.startswith("away"):
            raise socket.gaierror(socket.EAI_AGAIN, "away")
        return ["192.0.2.1", "192.0.2.1", "2001:db8::1"]


async def test_those_who_ask_for_one_name_share_a_look_up_for_some_seconds() -> None:
    names, now = Names(), 0.0
    lookups = Lookups(names, clock=lambda: now)
    found = await asyncio.gather(*(lookups.find("a.test") for _ in range(20)))
    assert set(found) == {Found("found", ("192.0.2.1", "2001:db8::1"))} and names.asked == ["a.test"]
    assert await lookups.find("a.test") == found[0] and len(names.asked) == 1
    now = 60.0
    assert await lookups.find("a.test") == found[0] and len(names.asked) == 2
    assert (await lookups.find("none.test")).outcome == "unknown"
    assert [(await lookups.find("away.test")).outcome for _ in range(2)] == ["failed", "failed"]
    assert names.asked.count("away.test") == 2, "what nobody could say is asked again"


async def test_threads_and_waiting_names_are_bounded() -> None:
    names = Names()
    lookups = Lookups(names)
    asking = [asyncio.ensure_future(lookups.find(f"slow{n}.test", n)) for n in range(MAX_THREADS)]
    asking += [asyncio.ensure_future(lookups.find(f"slow{n}.more", 0)) for n in range(MAX_WAITING)]
    assert await asyncio.to_thread(eventually, lambda: names.at_once == MAX_THREADS)
    assert (await lookups.find("more.test", 0)).outcome == "failed"
    for each in asking[MAX_THREADS:-1]:
        each.cancel()
    await asyncio.gather(*asking[MAX_THREADS:-1], return_exceptions=True)
    names.let.set()
    assert {found.outcome for found in await asyncio.gather(*asking[:MAX_THREADS], asking[-1])} == {"found"}
    assert names.most == MAX_THREADS and (await lookups.find("more.test", 0)).outcome == "found"
    assert len(names.asked) == MAX_THREADS + 2, "what nobody wants any more is not looked up"


async def test_one_who_gives_up_does_not_end_the_look_up_of_others() -> None:
    names = Names()
    lookups = Lookups(names)
    first, second = (asyncio.ensure_future(lookups.find("slow.test")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    names.let.set()
    assert (await second).outcome == "found"


def test_this_machine_s_own_names_are_found() -> None:
    assert "127.0.0.1" in addresses_of("localhost")
    with pytest.raises(socket.gaierror):
        addresses_of("name.invalid")
