"""Quotas in memory: the set of names that each key holds. No I/O."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic

__all__ = ["MemoryQuotas"]


class MemoryQuotas:
    """Quotas in this process. A key that nobody adds to for as long as was said is forgotten."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: OrderedDict[str, tuple[float, set[str]]] = OrderedDict()

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        now = self._clock()
        self._forget(now)
        until, held = self._held.get(key, (now, set[str]()))
        if until < now:
            held = set()
        if name not in held and len(held) >= most:
            return sorted(held)
        held.add(name)
        self._held[key] = (now + for_s, held)
        self._held.move_to_end(key)
        return []

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        _, held = self._held.get(key, (0.0, set[str]()))
        held.difference_update(names)
        if not held:
            self._held.pop(key, None)

    def _forget(self, now: float) -> None:
        while self._held:
            key, (until, _) = next(iter(self._held.items()))
            if until >= now:
                return
            del self._held[key]
