"""Rates and quotas of the memory store forget those who are gone."""

import pytest

from session_store.quotas import MemoryQuotas
from session_store.rates import MemoryRates
from session_store.testing import FakeClock
from tests.requirements import requirement


@pytest.mark.anyio
@requirement("wall.memory")
async def test_rates_and_quotas_of_those_who_are_gone_are_forgotten() -> None:
    clock = FakeClock()
    rates, quotas = MemoryRates(clock), MemoryQuotas(clock)
    for number in range(1_000):
        assert await rates.take(f"k{number}", 10.0, 5) == 0.0
        assert await quotas.hold(f"k{number}", "n", 1, for_s=10.0) == []
    clock.pass_time(60.0)
    await rates.take("last", 10.0, 5)
    await quotas.hold("last", "n", 1, for_s=10.0)
    assert len(rates._due) <= 1 and len(quotas._held) == 1
