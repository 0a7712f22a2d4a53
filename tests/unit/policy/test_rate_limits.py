"""Rates of sessions and principals, shared with the store in steps."""

import asyncio

import pytest

from gateway.config.policy import PolicySettings
from gateway.policy.rate_limits import RateLimits
from session_store import Principal
from session_store.embedded.rates import MemoryRates
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused
from transports.soon import arrived, is_there


@pytest.mark.anyio
@requirement("wall.bystander")
async def test_a_replica_asks_the_store_for_few_calls_and_lets_no_more_through() -> None:
    clock, asked = FakeClock(), 0

    class Counted(MemoryRates):
        async def take(self, key: str, per_s: float, burst: int, times: int = 1) -> float:
            nonlocal asked
            asked += 1
            return await super().take(key, per_s, burst, times)

    own = PolicySettings.model_validate({"session_rate": {"per_s": 100, "burst": 1_000}})
    rates = RateLimits(own, Counted(clock))
    alike = a_session(clock, principal=Principal(issuer="api-key", subject="alice"))
    for _ in range(100):
        await arrived(rates.call(alike))
    assert asked <= 10
    through = 100
    with pytest.raises(Refused) as refusal:
        for _ in range(2_000):
            await arrived(rates.call(alike))
            through += 1
    assert refusal.value.status == 429 and 1_000 <= through <= 1_020  # the burst, and what is settled afterwards


@pytest.mark.anyio
@requirement("hot.warm-call")
async def test_calls_within_the_rate_do_not_wait_for_the_store() -> None:
    clock = FakeClock()
    own = PolicySettings.model_validate({"session_rate": {"per_s": 100, "burst": 1_000}})
    rates, session = RateLimits(own, MemoryRates(clock)), a_session(clock)
    for _ in range(200):
        assert is_there(rates.call(session))
        clock.pass_time(0.01)
        await asyncio.sleep(0)


@pytest.mark.anyio
@requirement("wall.bystander")
async def test_openings_are_counted_for_each_principal() -> None:
    clock = FakeClock()
    settings = PolicySettings.model_validate({"opening_rate": {"per_s": 0.001, "burst": 1}})
    rates = RateLimits(settings, MemoryRates(clock))
    ada, bob = (a_session(clock, principal=Principal(issuer="api-key", subject=name)) for name in ("ada", "bob"))
    for session in (ada, bob):
        await arrived(rates.opening(session))
    with pytest.raises(Refused, match="sessions opened"):
        await arrived(rates.opening(ada))
