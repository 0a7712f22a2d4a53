"""Calls in flight: those on the fast path count as all others, and leave it as soon as somebody asks for them."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.deadlines import Deadlines
from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import TICK_S, Calls, CallWatch
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, a_call
from tests.unit.calls.parts import a_live

pytestmark = [pytest.mark.anyio, requirement("fast.falls-back")]


class Fast:
    """A call on the fast path, which leaves it as an exchange with its number."""

    def __init__(self, calls: Calls, number: int, falls_back_at: float = 1.0) -> None:
        self.calls, self.number, self.falls_back_at = calls, number, falls_back_at
        self.exchange: Exchange | None = None
        calls.fast[number] = self

    def answer(self, result: object) -> bool:
        return False

    def fall_back(self) -> None:
        assert self.calls.fast.pop(self.number) is self, "it leaves once"
        self.exchange = a_call()
        self.exchange.sent_as(FakeUpstream().conversation, self.number, None, 0.0)
        self.calls.send(self.exchange)


def test_calls_on_the_fast_path_are_counted_and_stay_there() -> None:
    calls = Calls()
    assert not calls and len(calls) == 0
    fast = [Fast(calls, number) for number in (1, 2)]
    calls.wait(a_call())
    assert calls and len(calls) == 3
    calls.rest()
    assert calls.take(1) is None and not calls.is_sent(a_call()) and not calls.end(a_call())
    assert len(calls) == 3 and [each.exchange for each in fast] == [None, None]


@pytest.mark.parametrize("asks", [list, lambda calls: list(calls.sent.values()), lambda calls: calls.take_only()])
def test_who_asks_for_the_calls_gets_all_of_them(asks: Any) -> None:
    calls = Calls()
    fast = [Fast(calls, number) for number in (1, 2)]
    asks(calls)
    assert [each.exchange for each in fast] == list(calls.sent.values()) and not calls.fast
    assert len(calls) == 2 and calls.take(2) is fast[1].exchange


def test_who_asks_for_one_call_gets_that_one_alone() -> None:
    calls = Calls()
    one, other = Fast(calls, 1), Fast(calls, 2)
    assert calls.find("1") is None and calls.find(3) is None and len(calls.fast) == 2
    assert calls.find(1) is one.exchange is not None and calls.find(1) is one.exchange
    assert other.exchange is None and calls.fast == {2: other}


def test_only_those_that_are_slow_leave_when_the_calls_are_looked_at() -> None:
    calls, waiting = Calls(), a_call()
    calls.wait(waiting)
    slow, quick = Fast(calls, 1, falls_back_at=4.9), Fast(calls, 2, falls_back_at=5.0)
    assert list(calls.slow(5.0)) == [slow.exchange, waiting]
    assert quick.exchange is None and calls.fast == {2: quick} and len(calls) == 3


def test_a_session_that_is_asked_for_its_calls_gets_those_on_the_fast_path() -> None:
    live, calls = a_live(), Calls()
    live.conversations["s", cast("Any", ""), b""] = cast("Any", SimpleNamespace(calls=calls))
    fast = Fast(calls, 1)
    assert live.in_flight_as(7) == [] and fast.exchange is not None, "it belongs to no session"


async def test_one_timer_looks_at_all_calls_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = asyncio.get_running_loop(), list[Any]()

    def call_later(delay: float, callback: Any) -> asyncio.TimerHandle:
        made.append((delay, callback))
        return cast("asyncio.TimerHandle", SimpleNamespace(cancel=lambda: None))

    monkeypatch.setattr(loop, "call_later", call_later)
    calls = Calls()
    deadlines = Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None)
    watch = CallWatch(cast("Any", SimpleNamespace(calls=calls, deadlines=deadlines, name="s")))
    for number in (1, 2, 3):
        Fast(calls, number, falls_back_at=float("inf"))
        watch.begin()
    assert [delay for delay, _ in made] == [TICK_S]
    made[0][1]()
    assert len(made) == 2 and len(calls.fast) == 3, "there are calls still"
    calls.fast.clear()
    made[1][1]()
    assert len(made) == 2 and watch.ticking is None
