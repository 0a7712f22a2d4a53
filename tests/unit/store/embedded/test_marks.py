"""Marks in this process."""

import pytest

from session_store.embedded.marks import MemoryMarks
from session_store.testing import FakeClock


@pytest.mark.anyio
async def test_a_mark_ends_by_itself_or_at_once() -> None:
    clock = FakeClock()
    marks = MemoryMarks(clock)
    await marks.set("a", 10.0)
    await marks.set("b", 20.0)
    assert await marks.has("a") and not await marks.has("c")
    clock.pass_time(10.0)
    assert not await marks.has("a") and await marks.has("b")
    await marks.drop("b")
    await marks.drop("b")
    assert not await marks.has("b")


@pytest.mark.anyio
async def test_marks_are_bounded_and_the_oldest_are_dropped() -> None:
    marks = MemoryMarks(FakeClock())
    for number in range(10_001):
        await marks.set(f"m{number}", 1_000.0)
    assert not await marks.has("m0") and await marks.has("m1") and await marks.has("m10000")


@pytest.mark.anyio
async def test_a_mark_in_use_outlives_any_number_of_new_ones() -> None:
    marks = MemoryMarks(FakeClock())
    await marks.set("operator/olga", 1_000.0)
    for number in range(20_000):
        await marks.set(f"learnt of client {number}", 1_000.0)
        if number % 1_000 == 0:
            assert await marks.has("operator/olga"), "a flood of clients signs an operator out"
    assert await marks.has("operator/olga")
