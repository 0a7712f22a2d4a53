"""Work on large messages and on many things in steps, between which the event loop serves other requests.

A step is one pass over the bytes, which takes some milliseconds for the largest body, or one slice of the things. Does
not know what a message is.
"""

import asyncio
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

__all__ = [
    "LARGE_BYTES",
    "SCANNED_AT_ONCE",
    "SENT_AT_ONCE",
    "at_once",
    "in_turns",
    "is_large",
    "others_first",
    "slices",
]

T = TypeVar("T")

LARGE_BYTES: Final = 256 << 10
"""A pass over fewer bytes takes less time than a small call, and needs no steps."""


SCANNED_AT_ONCE: Final = 1_000
"""Things that are looked at in one step: less than a millisecond, if a look is all."""

SENT_AT_ONCE: Final = 64
"""Commands that are sent to a store in one step: a millisecond, and again when the replies come."""


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return the items, so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


def is_large(params: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if any of these values is large."""
    for raw in params.values():  # `any` with a generator takes twice as long
        if len(memoryview(raw)) > LARGE_BYTES:
            return True
    return False


async def others_first() -> None:
    """Let other tasks run before work on something large."""
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
    """Return the result of the steps, with other tasks running between them."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as done:
        result: T = done.value
        return result
