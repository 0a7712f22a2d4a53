"""Marks in this process."""

import pytest

from session_store.embedded.marks import MemoryMarks
from session_store.testing import FakeClock

pytestmark = pytest.mark.anyio


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


async def test_of_too_many_marks_those_are_dropped_that_were_not_used_for_longest() -> None:
    marks = MemoryMarks(FakeClock())
    await marks.set("operator/olga", 1_000.0)
    for number in range(20_000):
        await marks.set(f"m{number}", 1_000.0)
        if number % 1_000 == 0:
            assert await marks.has("operator/olga"), "a flood of clients signs an operator out"
    assert [await marks.has(name) for name in ("operator/olga", "m10000", "m10001")] == [True, False, True]
