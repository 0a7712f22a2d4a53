"""Names are looked up in a bounded number of threads."""

import asyncio
import socket
import threading

import pytest

from gateway.sandbox import host_name_lookups
from gateway.sandbox.host_name_lookups import MAX_THREADS, MAX_WAITING, Found, Lookups, LookupTurns, addresses_of
from tests.requirements import requirement
from tests.support.waiting import eventually

pytestmark = requirement("box.names")


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
    first, second = (asyncio.ensure_future(lookups.find("slow.test")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    names.let.set()
    assert (await second).outcome == "found", "one who gives up does not end the look-up of others"
    assert "127.0.0.1" in addresses_of("localhost")
    with pytest.raises(socket.gaierror):
        addresses_of("name.invalid")


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


def begun(turns: LookupTurns) -> list[str]:
    """All names whose turn it is now."""
    found = []
    while (name := turns.next()) is not None:
        found.append(name)
    return found


def test_further_names_of_an_asker_leave_some_threads_to_others() -> None:
    turns = LookupTurns(threads=4, reserved=2)
    assert all(turns.ask(f"a{n}", "a") for n in range(5))
    assert begun(turns) == ["a0", "a1"]
    assert turns.ask("b0", "b") and turns.ask("c0", "c") and turns.ask("d0", "d")
    assert begun(turns) == ["b0", "c0"]
    turns.done("a0")
    assert begun(turns) == ["d0"], "the first name of another comes before further ones"


def test_the_names_of_a_quick_asker_take_turns_though_others_hold_all_that_is_not_reserved() -> None:
    turns = LookupTurns(threads=3, reserved=1)
    assert all(turns.ask(f"a{n}", "a") for n in range(4))
    assert begun(turns) == ["a0", "a1"]
    assert all(turns.ask(f"b{n}", "b") for n in range(3))
    for name in ("b0", "b1", "b2"):
        assert begun(turns) == [name]
        turns.done(name)


def test_an_asker_of_slow_names_has_no_reserved_thread_for_a_minute() -> None:
    now = [0.0]
    turns = LookupTurns(threads=2, reserved=1, clock=lambda: now[0])
    assert turns.ask("slow", "a") and begun(turns) == ["slow"]
    now[0] = 3.0
    turns.done("slow")
    assert turns.ask("b0", "b") and begun(turns) == ["b0"]
    assert turns.ask("again", "a") and begun(turns) == []
    turns.done("b0")
    assert begun(turns) == ["again"]
    now[0] = 4.0
    turns.done("again")
    now[0] = 64.0
    assert turns.ask("b1", "b") and turns.ask("later", "a") and begun(turns) == ["b1", "later"]


def test_a_name_that_another_asks_for_too_has_the_turn_of_the_better_one() -> None:
    turns = LookupTurns(threads=2, reserved=1)
    assert turns.ask("a0", "a") and turns.ask("shared", "a") and begun(turns) == ["a0"]
    turns.join("shared", "a")
    assert begun(turns) == []
    turns.join("shared", "b")
    assert begun(turns) == ["shared"]
    turns.done("shared")
    assert turns.ask("b0", "b") and begun(turns) == ["b0"]


def test_names_that_nobody_wants_leave_and_lines_are_bounded() -> None:
    turns = LookupTurns(threads=1, reserved=1)
    assert turns.ask("a", "a") and begun(turns) == ["a"] and not turns.give_up("a")
    assert all(turns.ask(f"a{n}", "a") for n in range(host_name_lookups.MAX_WAITING))
    assert not turns.ask("more", "a")
    assert turns.give_up("a3") and not turns.give_up("a3") and turns.ask("more", "a")
    assert all(turns.ask(f"first{n}", n) for n in range(host_name_lookups.MAX_FIRST))
    assert not turns.ask("first", "f")
