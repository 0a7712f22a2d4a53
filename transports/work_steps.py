"""Split long work into steps, between which the event loop serves other requests.

A step is one pass over the bytes of a large message, which takes some milliseconds at most, or one slice of many items.
Knows nothing of messages.
"""

import asyncio
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

LARGE_BYTES: Final = 256 << 10
"""Maximum bytes of a message that is processed without steps: one pass over it takes less time than a small call."""


SCANNED_AT_ONCE: Final = 1_000
"""The number of items that one step examines: that takes less than a millisecond, if the step does no more."""

PIECES_AT_ONCE: Final = 128
"""The number of parts of a stream, such as lines, that one turn of the event loop handles: some milliseconds."""

SENT_AT_ONCE: Final = 64
"""The number of commands that one step sends to a store: sending them takes a millisecond, and reading the replies
another."""


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return an iterator over slices of at most `size` items."""
    return (items[at : at + size] for at in range(0, len(items), size))


def is_large(params: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if any of these values has more than `LARGE_BYTES`."""
    for raw in params.values():  # `any` with a generator takes twice as long
        if len(memoryview(raw)) > LARGE_BYTES:
            return True
    return False


async def let_others_run() -> None:
    """Let other tasks run before work on something large."""
    await asyncio.sleep(0)


class Turns:
    """Let other tasks run from time to time during work on many small pieces that never has to wait."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = PIECES_AT_ONCE

    async def done(self, pieces: int = 1) -> None:
        """Count pieces of work that are done. Let other tasks run after each `PIECES_AT_ONCE`."""
        self._left -= pieces
        if self._left <= 0:
            self._left = PIECES_AT_ONCE
            await let_others_run()


def run_steps(steps: Generator[None, None, T]) -> T:
    """Run stepwise work (a generator that yields between its steps) to its end without pauses, and return its
    result."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_steps_with_pauses(steps: Generator[None, None, T]) -> T:
    """Run stepwise work to its end, let other tasks run between the steps, and return its result."""
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as done:
        result: T = done.value
        return result
