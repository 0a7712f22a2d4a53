"""Who may look a name up next. Pure.

Names are looked up in a bounded number of threads, and a name server that does not answer holds one for many seconds.
So some threads are kept for those who have nothing under way and whose names were quick of late. Who asks for
slow names, and for further ones at the same time, waits for the others.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final

from cachetools import TTLCache

__all__ = ["MAX_FIRST", "MAX_WAITING", "LookupTurns"]

MAX_WAITING: Final = 512
"""Names that wait behind others of their askers, or of slow ones."""

MAX_FIRST: Final = 2_048
"""Askers whose one name waits."""

_SLOW_S: Final = 2.0
_REMEMBERED_S: Final = 60.0
_REMEMBERED: Final = 4_096


class LookupTurns:
    """The turns of names. `reserved` of the threads are for the first name of askers that are not slow."""

    def __init__(self, threads: int, reserved: int, clock: Callable[[], float] = monotonic) -> None:
        self._free = threads
        self._reserved = reserved
        self._clock = clock
        self._under_way = Counter[Hashable]()
        self._slow: TTLCache[Hashable, bool] = TTLCache(_REMEMBERED, _REMEMBERED_S, clock)
        self._first: dict[str, Hashable] = {}  # in the order in which they came
        self._rest: dict[str, Hashable] = {}
        self._began: dict[str, tuple[Hashable, float]] = {}

    def ask(self, name: str, asker: Hashable) -> bool:
        """Line a name up that is not there yet. False: too many wait."""
        if self._is_idle(asker):
            line, most = self._first, MAX_FIRST
        else:
            line, most = self._rest, MAX_WAITING
        if len(line) >= most:
            return False
        line[name] = asker
        self._under_way[asker] += 1
        return True

    def join(self, name: str, asker: Hashable) -> None:
        """Another one asks for a name that is lined up, or is being looked up."""
        if name in self._rest and self._is_idle(asker) and len(self._first) < MAX_FIRST:
            self._leave(self._rest.pop(name))
            self._first[name] = asker
            self._under_way[asker] += 1

    def next(self) -> str | None:
        """The name whose turn it is: a thread is its own until `done`. None: it is nobody's turn."""
        for line, kept in ((self._first, 0), (self._rest, self._reserved)):
            if line and self._free > kept:
                name = next(iter(line))
                self._began[name] = (line.pop(name), self._clock())
                self._free -= 1
                return name
        return None

    def done(self, name: str) -> None:
        """A name was looked up."""
        asker, began = self._began.pop(name)
        self._free += 1
        self._leave(asker)
        if self._clock() - began > _SLOW_S:
            self._slow[asker] = True
        elif asker not in self._slow and asker not in self._first.values():
            waiting = next((other for other, whose in self._rest.items() if whose == asker), None)
            if waiting is not None:
                self._first[waiting] = self._rest.pop(waiting)

    def give_up(self, name: str) -> bool:
        """Take a name out of its line. False: it is in none."""
        for line in (self._first, self._rest):
            if name in line:
                self._leave(line.pop(name))
                return True
        return False

    def _is_idle(self, asker: Hashable) -> bool:
        return asker not in self._under_way and asker not in self._slow

    def _leave(self, asker: Hashable) -> None:
        self._under_way[asker] -= 1
        if not self._under_way[asker]:
            del self._under_way[asker]
