"""Rates of sessions and principals, shared with the store in steps."""

import asyncio
from typing import Any

import pytest

from gateway.config.policy import PolicySettings
from gateway.policy.rate_limits import RateLimits
from session_store.embedded.rates import MemoryRates
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused
from transports.soon import arrived, is_there

pytestmark = pytest.mark.anyio

PER_SESSION = {"session_rate": {"per_s": 100, "burst": 1_000}}


def rates_of(store: MemoryRates, settings: dict[str, Any]) -> RateLimits:
    return RateLimits(PolicySettings.model_validate(settings), store)


@requirement("wall.bystander")
async def test_a_replica_asks_the_store_for_few_calls_and_lets_no_more_through() -> None:
    clock, asked = FakeClock(), 0

    class Counted(MemoryRates):
        async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
            nonlocal asked
            asked += 1
            return await super().take(key, per_s, burst, times, within_s)

    rates, session = rates_of(Counted(clock), PER_SESSION), a_session(clock)
    for _ in range(100):
        await arrived(rates.call(session))
    assert asked <= 10
    through = 100
    with pytest.raises(Refused) as refusal:
        for _ in range(2_000):
            await arrived(rates.call(session))
            through += 1
    assert refusal.value.status == 429 and 1_000 <= through <= 1_020  # the burst, and what is settled afterwards


@requirement("hot.warm-call")
async def test_calls_within_the_rate_do_not_wait_for_the_store() -> None:
    clock = FakeClock()
    rates, session = rates_of(MemoryRates(clock), PER_SESSION), a_session(clock)
    for _ in range(200):
        assert is_there(rates.call(session))
        clock.pass_time(0.01)
        await asyncio.sleep(0)


@requirement("wall.bystander")
async def test_openings_are_counted_for_each_principal() -> None:
    clock = FakeClock()
    rates = rates_of(MemoryRates(clock), {"opening_rate": {"per_s": 0.001, "burst": 1}})
    alices, bobs = (a_session(clock, principal=principal) for principal in (ALICE, BOB))
    for session in (alices, bobs):
        await arrived(rates.opening(session))
    with pytest.raises(Refused, match="sessions opened"):
        await arrived(rates.opening(alices))
