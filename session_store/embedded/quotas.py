"""Quotas in memory: the set of names that each key holds. No I/O."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

__all__ = ["MemoryQuotas"]

_FORGET_EVERY_S: Final = 10.0
"""How often keys are looked for whose time has passed."""


class MemoryQuotas:
    """Quotas in this process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._held: dict[str, tuple[float, set[str]]] = {}
        self._forgotten_at = clock()

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        now = self._clock()
        self._forget(now)
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

    def _forget(self, now: float) -> None:
        if now - self._forgotten_at >= _FORGET_EVERY_S:
            self._forgotten_at = now
            for key in [key for key, (until, _) in self._held.items() if until < now]:
                del self._held[key]
