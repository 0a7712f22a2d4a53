"""Rates in this process."""

import pytest

from session_store.embedded.rates import MemoryRates
from session_store.testing import FakeClock
from tests.requirements import requirement


@pytest.mark.anyio
@requirement("wall.memory")
async def test_keys_that_are_no_longer_limited_are_forgotten() -> None:
    clock = FakeClock()
    rates = MemoryRates(clock)
    for number in range(1_000):
        assert await rates.take(f"k{number}", 10.0, 5) == 0.0
    clock.pass_time(60.0)
    await rates.take("last", 10.0, 5)
    assert len(rates._due) <= 1


@pytest.mark.anyio
async def test_a_refusal_says_how_long_to_wait_and_counts_nothing() -> None:
    rates = MemoryRates(FakeClock())
    assert await rates.take("k", 2.0, 4, 4) == 0.0
    assert [await rates.take("k", 2.0, 4) for _ in range(3)] == [pytest.approx(0.5)] * 3
