"""Rate limits by the generic cell rate algorithm, with one number for each key. No I/O."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["MemoryRates"]

_HELD: Final = 20_000


class MemoryRates:
    """Rates in this process."""

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
        # What is due no more is as if it had never been.
        while self._due and (len(self._due) > _HELD or next(iter(self._due.values())) <= now):
            self._due.popitem(last=False)
        return max(0.0, wait)
