"""Calls in flight: those on the fast path count as all others, and leave it as soon as somebody asks for them."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import MOST_TOKENS, TICK_S, CallsInFlight, CallWatch, fields_of_line
from gateway.calls.lifecycles import Deadlines
from session_store.session import redact
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, a_call, a_live


class Fast:
    """A call on the fast path, which leaves it as an exchange with its number."""

    progress_token = b""

    def __init__(self, calls: CallsInFlight, number: int, falls_back_at: float = 1.0) -> None:
        self.calls, self.number, self.falls_back_at = calls, number, falls_back_at
        self.exchange: Exchange | None = None
        calls.fast[number] = self

    def emit(self, frame: bytes) -> None:
        raise AssertionError("it has no token")

    def answer(self, result: object) -> bool:
        return False

    def fall_back(self) -> None:
        assert self.calls.fast.pop(self.number) is self, "it leaves once"
        self.exchange = a_call()
        self.exchange.sent_as(FakeUpstream().conversation, self.number, None, 0.0)
        self.calls.add_sent(self.exchange)


@requirement("fast.falls-back")
def test_calls_on_the_fast_path_are_counted_and_stay_there() -> None:
    calls = CallsInFlight()
    assert not calls and len(calls) == 0
    fast = [Fast(calls, number) for number in (1, 2)]
    calls.add_waiting(a_call())
    assert calls and len(calls) == 3
    calls.free_memory()
    assert calls.pop(1) is None and not calls.is_sent(a_call()) and not calls.end(a_call())
    assert len(calls) == 3 and [each.exchange for each in fast] == [None, None]


@requirement("fast.falls-back")
@pytest.mark.parametrize("asks", [list, lambda calls: list(calls.sent.values()), lambda calls: calls.pop_only()])
def test_who_asks_for_the_calls_gets_all_of_them(asks: Any) -> None:
    calls = CallsInFlight()
    fast = [Fast(calls, number) for number in (1, 2)]
    asks(calls)
    assert [each.exchange for each in fast] == list(calls.sent.values()) and not calls.fast
    assert len(calls) == 2 and calls.pop(2) is fast[1].exchange


@requirement("fast.falls-back")
def test_who_asks_for_one_call_gets_that_one_alone_and_who_looks_at_slow_ones_gets_those() -> None:
    calls = CallsInFlight()
    one, other = Fast(calls, 1), Fast(calls, 2)
    assert calls.find("1") is None and calls.find(3) is None and len(calls.fast) == 2
    assert calls.find(1) is one.exchange is not None and calls.find(1) is one.exchange
    assert other.exchange is None and calls.fast == {2: other}
    slow, waiting = Fast(calls, 3, falls_back_at=4.9), a_call()
    calls.add_waiting(waiting)
    other.falls_back_at = 5.0
    assert {*calls.slow(5.0)} == {one.exchange, slow.exchange, waiting}, "and those that are slow leave"
    assert other.exchange is None and calls.fast == {2: other} and len(calls) == 4


@requirement("fast.falls-back")
async def test_one_timer_looks_at_all_calls_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, made = asyncio.get_running_loop(), list[Any]()

    def call_later(delay: float, callback: Any) -> asyncio.TimerHandle:
        made.append((delay, callback))
        return cast("asyncio.TimerHandle", SimpleNamespace(cancel=lambda: None))

    monkeypatch.setattr(loop, "call_later", call_later)
    calls = CallsInFlight()
    deadlines = Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None)
    watch = CallWatch(cast("Any", SimpleNamespace(deadlines=deadlines, name="s")), calls)
    for number in (1, 2, 3):
        Fast(calls, number, falls_back_at=float("inf"))
        watch.begin()
    assert [delay for delay, _ in made] == [TICK_S]
    made[0][1]()
    assert len(made) == 2 and len(calls.fast) == 3, "there are calls still"
    calls.fast.clear()
    made[1][1]()
    assert len(made) == 2 and watch.ticking is None


LIVE, OTHER = a_live(), a_live()
OWN: dict[str, Any] = {"session": redact(LIVE.session.id)}


@requirement("ctx.correlation-right")
@pytest.mark.parametrize(
    ("of_session", "in_flight", "opened_for", "expected"),
    [
        (True, "a", "", {"correlation": "a", **OWN}),
        (True, "ba", "", {"correlation": "", "correlations": "a b", "in_flight": 2, **OWN}),
        (True, "abcd", "", {"correlation": "", "in_flight": 4, **OWN}),
        (True, "", "", {"correlation": "", **OWN}),
        (True, "", "opening", {"correlation": "opening", **OWN}),
        (False, "ab", "", {"correlation": "", "correlations": "a b", "in_flight": 2, **OWN}),
        (False, "ao", "", {"correlation": "", "correlations": "a o", "in_flight": 2}),
        (False, "", "", {"correlation": ""}),
    ],
)
def test_a_line_names_the_only_call_in_flight_and_the_session_of_all_and_guesses_none(
    of_session: bool, in_flight: str, opened_for: str, expected: dict[str, Any]
) -> None:
    calls = [a_call(OTHER if correlation == "o" else LIVE) for correlation in in_flight]
    for call, correlation in zip(calls, in_flight, strict=True):
        call.begin(0.0, correlation, None)
    source = SimpleNamespace(name="files", session=OWN["session"] if of_session else "", principal="")
    assert fields_of_line(cast("Any", source), calls, opened_for) == {"server": "files", **expected}


@requirement("spec.task-progress")
def test_the_oldest_token_of_a_task_is_forgotten_and_no_session_is_kept_alive() -> None:
    calls, live, conversation = CallsInFlight(), a_live(), FakeUpstream().conversation
    for number in range(MOST_TOKENS + 1):
        call = a_call(live)
        call.sent_as(conversation, number, None, 0.0)
        call.progress_token, call.makes_task = msgspec.Raw(b"%d" % number), True
        calls.add_sent(call)
        assert calls.pop(number) is call
    assert calls.token_of_task(0) is None and calls.token_of_task("1") is None and calls.token_of_task(None) is None
    kept = calls.token_of_task(MOST_TOKENS)
    assert kept is not None and bytes(kept.token) == b"%d" % MOST_TOKENS and kept.session() is live
    del live, call
    gc.collect()
    assert kept.session() is None
