"""Large messages are worked on in steps, with others served in between."""

import asyncio
from collections.abc import Generator

import msgspec

from transports.work_steps import LARGE_BYTES, is_large, let_others_run, run_steps, run_steps_with_pauses


def steps(count: int) -> Generator[None, None, str]:
    for _ in range(count):
        yield
    return "done"


async def turns_of_others(work: object) -> int:
    """How often somebody else had a turn while that was done."""
    turns, ended = 0, False

    async def other() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await work  # type: ignore[misc]  # an awaitable
    ended = True
    await task
    return turns


async def test_others_have_a_turn_between_steps() -> None:
    assert await turns_of_others(run_steps_with_pauses(steps(5))) >= 5
    assert await turns_of_others(let_others_run()) >= 1
    assert run_steps(steps(5)) == await run_steps_with_pauses(steps(5)) == "done"


def test_a_value_is_large_or_not() -> None:
    large, small = msgspec.Raw(b"1" * (LARGE_BYTES + 1)), msgspec.Raw(b"1")
    assert is_large({"a": small, "b": large}) and not is_large({"a": small}) and not is_large({})
