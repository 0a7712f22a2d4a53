"""Marks in this process: names that stand for a while. Pure but for its table."""

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["MemoryMarks"]

_HELD = 10_000


class MemoryMarks:
    """The oldest go first where there are too many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[str, float] = OrderedDict()

    async def set(self, name: str, for_s: float) -> None:
        self._until[name] = self._clock() + for_s
        self._until.move_to_end(name)
        while len(self._until) > _HELD or next(iter(self._until.values())) <= self._clock():
            self._until.popitem(last=False)

    async def has(self, name: str) -> bool:
        return self._until.get(name, 0.0) > self._clock()

    async def drop(self, name: str) -> None:
        self._until.pop(name, None)
