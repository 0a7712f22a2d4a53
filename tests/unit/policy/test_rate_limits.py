"""Rates of sessions and principals, shared with the store in steps. Time is virtual: the loop skips what it waits."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.config.policy import PolicySettings, RateSettings
from gateway.policy import rate_limits as module
from gateway.policy.rate_limits import RateLimits
from session_store import ANONYMOUS, StoreUnavailable
from session_store.embedded.accounting import MemoryRates
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement
from tests.support.virtual_time import skip_waits
from tests.support.waiting import at_once
from transports.inbound_port import Refused

PER_SESSION = {"session_rate": {"per_s": 100, "burst": 1_000}}
SLOW = {"session_rate": {"per_s": 2, "burst": 1}}
ROUND_TRIP_S = 0.002


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The time of the store, of the limits and of the loop."""
    clock = skip_waits(monkeypatch)
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


async def later(seconds: float) -> None:
    """Let time pass."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed


class Store(MemoryRates):
    """Rates of a store that takes a while to answer, and counts how often it is asked. It may fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.asked = 0
        self.fails: Exception | None = None

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        self.asked += 1
        await later(ROUND_TRIP_S)
        if self.fails is not None:
            raise self.fails
        return await super().take(key, per_s, burst, times, within_s)


def rates_of(store: MemoryRates, settings: dict[str, Any]) -> RateLimits:
    return RateLimits(PolicySettings.model_validate(settings), store)


async def answers(*calls: Awaitable[None]) -> list[int]:
    """Their statuses."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [each.status if isinstance(each, Refused) else 200 for each in found]


@requirement("wall.bystander")
async def test_a_client_that_waits_for_each_answer_is_slowed_down_and_never_refused(clock: FakeClock) -> None:
    store = Store(clock)
    rates, session, began, longest, calls = rates_of(store, {}), a_session(clock), clock(), 0.0, 0
    while clock() - began < 20:
        at = clock()
        await rates.count_message(session.principal, "")
        await rates.count_call(session.id)
        calls, longest = calls + 1, max(longest, clock() - at)
        clock.pass_time(0.0005)  # the server's answer
    assert 5_000 + 19 * 500 <= calls <= 5_000 + 21 * 500 and longest < 0.15
    assert store.asked < calls / 20, "the store says how long to wait"


@requirement("wall.bystander")
async def test_a_runaway_session_is_delayed_and_refused_and_others_are_neither(clock: FakeClock) -> None:
    rates = rates_of(Store(clock), PER_SESSION)
    runaway, other = a_session(clock, principal=ALICE), a_session(clock, principal=BOB)
    assert rates._sessions is not None
    most, slowest, statuses, ends = 0, 0.0, list[int](), clock() + 8

    async def without_end() -> None:
        while clock() < ends:
            statuses.extend(await answers(rates.count_call(runaway.id)))
            await later(0.1)

    running = [asyncio.create_task(without_end()) for _ in range(100)]
    while clock() < ends:
        at = clock()
        await rates.count_call(other.id)
        slowest, most = max(slowest, clock() - at), max(most, rates._sessions[runaway.id].waiting)
        await later(0.05)
    await asyncio.gather(*running)
    served, refused = statuses.count(200), statuses.count(429)
    assert 1_000 + 7 * 100 <= served <= 1_000 + 10 * 100 and refused > served and most == 32
    assert slowest <= 2 * ROUND_TRIP_S


@requirement("wall.bystander")
async def test_what_waits_is_served_in_the_order_in_which_it_came(clock: FakeClock) -> None:
    rates, session, served = rates_of(Store(clock), PER_SESSION), a_session(clock), list[tuple[int, float]]()

    async def call(number: int) -> None:
        await rates.count_call(session.id)
        served.append((number, clock()))

    await asyncio.gather(*(call(number) for number in range(1_000)))
    waiting = []
    for number in range(30):
        waiting.append(asyncio.create_task(call(1_000 + number)))
        await later(ROUND_TRIP_S * 0.7)  # some come while the store is asked, and some later
    await asyncio.gather(*waiting)
    assert [number for number, _ in served] == [*range(1_030)]
    assert served[-1][1] - served[-8][1] == pytest.approx(0.07, abs=0.005), "one after the other, at the rate"


async def test_a_turn_that_would_come_later_than_a_second_is_refused_at_once(clock: FakeClock) -> None:
    rates, session = rates_of(Store(clock), SLOW), a_session(clock)
    at = clock()
    assert await answers(*(rates.count_call(session.id) for _ in range(5))) == [200, 200, 200, 429, 429]
    assert clock() - at == pytest.approx(1.0, abs=0.01)
    at = clock()
    found = [asyncio.create_task(rates.count_call(session.id)) for _ in range(3)]
    with pytest.raises(Refused) as refusal:
        await found[2]
    assert refusal.value.status == 429 and refusal.value.headers["Retry-After"] == "2" and clock() - at < 0.1
    assert await answers(*found[:2]) == [200, 200]


@requirement("wall.memory")
async def test_a_call_that_is_cancelled_waits_no_more_and_takes_no_place(clock: FakeClock) -> None:
    store = Store(clock)
    rates, session = rates_of(store, SLOW), a_session(clock)
    assert rates._sessions is not None
    account = rates._sessions[session.id]
    for pause in (0.0, ROUND_TRIP_S / 2, ROUND_TRIP_S * 2):  # not begun, in the queue, with its turn
        await rates.count_call(session.id)
        call = asyncio.create_task(rates.count_call(session.id))
        await later(pause)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (account.waiting, account.queue) == (0, [])
        await later(2)


@requirement("rep.store-down")
async def test_everything_goes_on_at_once_when_the_process_drains_or_the_store_fails(clock: FakeClock) -> None:
    store = Store(clock)
    rates, session, other = rates_of(store, SLOW), a_session(clock), a_session(clock)
    for _ in range(2):
        waiting = [asyncio.create_task(rates.count_call(session.id)) for _ in range(2)]
        await later(0.1)
        at = clock()
        rates.release_waiting()
        assert await answers(*waiting) == [200, 200] and clock() == at
        await later(2)
    waiting = [asyncio.create_task(rates.count_call(session.id)) for _ in range(2)]
    await later(0.1)
    store.fails, at = StoreUnavailable("away"), clock()
    assert await answers(rates.count_call(other.id), *waiting) == [200] * 3 and clock() - at < 0.01
    store.fails = ValueError("a fault")
    with pytest.raises(ValueError, match="a fault"):
        await rates.count_call(session.id)


@requirement("wall.bystander")
async def test_bodies_of_a_client_that_waits_for_each_answer_are_slowed_down(clock: FakeClock) -> None:
    rates, session, at = rates_of(Store(clock), PER_SESSION), a_session(clock), clock()
    for _ in range(40):  # 64 each
        await rates.count_call(session.id, 4 << 20)
    assert clock() - at == pytest.approx((40 * 64 - 1_000) / 100, abs=0.5)


async def test_calls_within_the_rate_do_not_wait_for_the_store(clock: FakeClock) -> None:
    store = Store(clock)
    rates, session = rates_of(store, PER_SESSION), a_session(clock)
    for _ in range(200):
        at_once(rates.count_call(session.id))
        await later(0.011)
    assert store.asked <= 40


@requirement("wall.bystander")
async def test_openings_are_counted_for_each_principal_whose_sessions_have_a_limit(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.policy.rate_limits.OPENING_RATE", RateSettings(per_s=0.001, burst=1))
    rates, unlimited = (rates_of(MemoryRates(clock), policy) for policy in ({}, {"principal_sessions": 0}))
    alices, bobs = (a_session(clock, principal=principal).counted_as for principal in (ALICE, BOB))
    for whose in (alices, bobs):
        await rates.count_opening(whose)
    with pytest.raises(Refused, match="sessions opened"):
        await rates.count_opening(alices)
    for _ in range(2):
        await unlimited.count_opening(alices)


@requirement("wall.bystander")
async def test_anonymous_clients_are_counted_by_their_addresses(clock: FakeClock) -> None:
    rates = rates_of(Store(clock), {"principal_rate": {"per_s": 0.001, "burst": 2}})
    for client in ("192.0.2.1", "192.0.2.2"):
        await rates.count_message(ANONYMOUS, client)
        await rates.count_body(ANONYMOUS, client, 65 << 10)  # counts as one more
        assert await answers(rates.count_message(ANONYMOUS, client)) == [429]
    assert await answers(rates.count_message(ALICE, "192.0.2.1")) == [200]


async def test_a_call_is_spent_at_hand_of_both_accounts_or_of_none(clock: FakeClock) -> None:
    store = Store(clock)
    both = {"session_rate": {"per_s": 100, "burst": 40}, "principal_rate": {"per_s": 1_000, "burst": 1_000}}
    rates = rates_of(store, both)
    assert rates._sessions is not None and rates._principals is not None and rates._addresses is not None
    spent = 0
    while rates.spend_at_hand(ALICE, "", "s"):
        spent += 1
    session, alice = rates._sessions["s"], rates._principals[ALICE]
    assert spent == 10 == session.credit and (session.left, alice.left) == (-10, -10)
    rates.give_back(ALICE, "", "s")
    assert (session.left, alice.left) == (-9, -9)
    rates.give_back(ANONYMOUS, "192.0.2.9", "s")
    assert (session.left, alice.left, rates._addresses["192.0.2.9"].left) == (-8, -9, 1)
    assert rates.spend_at_hand(ALICE, "", "s") and rates.spend_at_hand(ALICE, "", "s")
    await later(0.1)
    assert store.asked == 1 and session.left > 0, "the store was asked behind the calls"
    assert rates.spend_at_hand(ANONYMOUS, "192.0.2.1", "s") and rates._addresses["192.0.2.1"].left == -1
    waiting = [asyncio.create_task(rates.count_call("s")) for _ in range(60)]
    await later(0.05)
    left = alice.left
    assert session.waiting and not rates.spend_at_hand(ALICE, "", "s"), "others wait for it"
    assert alice.left == left
    await asyncio.gather(*waiting, return_exceptions=True)
    off = rates_of(store, {"session_rate": 0, "principal_rate": 0})
    assert off.spend_at_hand(ALICE, "", "s")
    off.give_back(ALICE, "", "s")
