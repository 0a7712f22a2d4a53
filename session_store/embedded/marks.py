"""`Marks` in this process."""

from collections.abc import Callable
from typing import Final

from cachetools import TLRUCache

__all__ = ["MemoryMarks"]

_MOST: Final = 10_000


class MemoryMarks:
    """Names with the time until which each is set. Beyond the bound, the least recently used are dropped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: TLRUCache[str, float] = TLRUCache(_MOST, ttu=lambda name, until, now: until, timer=clock)

    async def set(self, name: str, for_s: float) -> None:
        self._until[name] = self._clock() + for_s

    async def has(self, name: str) -> bool:
        return self._until.get(name) is not None  # `in` would not count as use

    async def drop(self, name: str) -> None:
        self._until.pop(name, None)
