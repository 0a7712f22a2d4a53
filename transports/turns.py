"""Large messages are worked on in steps, and others are served between them: nobody waits for all of it at once.

A step is a pass over the bytes, which takes some milliseconds for as much as a body may have. Knows no message.
"""

import asyncio
from collections.abc import Generator, Mapping
from typing import Final, TypeVar

import msgspec

__all__ = ["LARGE_BYTES", "at_once", "in_turns", "is_large", "others_first"]

T = TypeVar("T")

LARGE_BYTES: Final = 256 << 10
"""A pass over so much takes less than a small call does, so that small ones need no steps."""


def is_large(params: Mapping[str, msgspec.Raw]) -> bool:
    """True if any of these values is large."""
    return any(len(memoryview(raw)) > LARGE_BYTES for raw in params.values())


async def others_first(is_large: bool) -> None:
    """Let everybody else have a turn, if it is."""
    if is_large:
        await asyncio.sleep(0)


def at_once(steps: Generator[None, None, T]) -> T:
    """Run stepwise work to its end without pauses, and return its result."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


async def in_turns(steps: Generator[None, None, T]) -> T:
    """The same, with others let in."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as done:
        result: T = done.value
        return result
