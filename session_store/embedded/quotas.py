"""Keep rates, quotas, expiring flags and sealed values in memory. No I/O."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from cachetools import TLRUCache

_HELD: Final = 20_000


class MemoryRates:
    """Limit rates in memory by the generic cell rate algorithm (GCRA), which keeps only one time for each key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        now, every = self._clock(), 1.0 / per_s
        due = max(self._due.get(key, now), now)
        wait = round(due - now - every * (burst - times), 6)
        if wait > within_s:
            return wait
        self._due[key] = due + every * times
        self._due.move_to_end(key)
        # A time that has passed limits nothing: forget its key.
        while self._due and (len(self._due) > _HELD or next(iter(self._due.values())) <= now):
            self._due.popitem(last=False)
        return max(0.0, wait)


_FORGET_EVERY_S: Final = 10.0
"""Seconds between deletions of expired keys."""


class MemoryQuotas:
    """Limit how many names (of things in use) are held under each key, in memory. When a key expires, its names are
    released."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, tuple[float, set[str]]] = {}
        self._forgotten_at = clock()

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        now = self._clock()
        if now - self._forgotten_at >= _FORGET_EVERY_S:
            self._forgotten_at = now
            self._held = {key: held for key, held in self._held.items() if held[0] >= now}
        until, held = self._held.get(key, (now, set[str]()))
        if until < now:
            held = set()
        if name not in held and len(held) >= most:
            return sorted(held)
        held.add(name)
        self._held[key] = (max(until, now + for_s), held)
        return []

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        _, held = self._held.get(key, (0.0, set[str]()))
        held.difference_update(names)
        if not held:
            self._held.pop(key, None)


_MOST: Final = 10_000


class MemoryExpiringFlags:
    """Keep flags until they expire. Beyond `_MOST` flags, the least recently used are dropped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: TLRUCache[str, float] = TLRUCache(_MOST, ttu=lambda name, until, now: until, timer=clock)

    async def set(self, name: str, for_s: float) -> None:
        self._until[name] = self._clock() + for_s

    async def has(self, name: str) -> bool:
        return self._until.get(name) is not None  # `in` would not count as use

    async def drop(self, name: str) -> None:
        self._until.pop(name, None)


class MemorySealedValues:
    """Store values that expire. Beyond `_MOST` values, the least recently used are dropped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: TLRUCache[str, tuple[float, bytes]]
        self._of = TLRUCache(_MOST, ttu=lambda name, value, now: value[0], timer=clock)

    async def get(self, name: str) -> bytes | None:
        return self._of.get(name, (0.0, None))[1]

    async def replace(self, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0) -> bool:
        if await self.get(name) != before:
            return False
        if after is None:
            self._of.pop(name, None)
        else:
            self._of[name] = (self._clock() + for_s, after)
        return True

    async def names(self) -> list[str]:
        return [*self._of]
