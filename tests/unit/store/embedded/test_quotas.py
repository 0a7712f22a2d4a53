"""Quotas in this process."""

import pytest

from session_store.embedded.quotas import MemoryQuotas
from session_store.testing import FakeClock
from tests.requirements import requirement


@pytest.mark.anyio
@requirement("wall.memory")
async def test_keys_that_nobody_adds_to_are_forgotten() -> None:
    clock = FakeClock()
    quotas = MemoryQuotas(clock)
    for number in range(1_000):
        assert await quotas.hold(f"k{number}", "n", 1, for_s=10.0) == []
    clock.pass_time(60.0)
    await quotas.hold("last", "n", 1, for_s=10.0)
    assert len(quotas._held) == 1


@pytest.mark.anyio
async def test_a_full_key_names_its_holders_until_one_is_given_back() -> None:
    quotas = MemoryQuotas(FakeClock())
    assert await quotas.hold("k", "b", 2, for_s=10.0) == await quotas.hold("k", "a", 2, for_s=10.0) == []
    assert await quotas.hold("k", "c", 2, for_s=10.0) == ["a", "b"]
    assert await quotas.hold("k", "a", 2, for_s=10.0) == [], "holding again is harmless"
    await quotas.give_back("k", ["a", "unknown"])
    assert await quotas.hold("k", "c", 2, for_s=10.0) == []
