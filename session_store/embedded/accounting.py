"""Keep rates, quotas, expiring flags, sealed values, the audit trail, timelines and the history of metrics in memory.
No I/O."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from cachetools import TLRUCache

from session_store.ports.audit import PARTS, AuditEvent, by_part, newest
from session_store.ports.timelines import (
    KEPT_S,
    STEPS,
    HistoryRecord,
    Timeline,
    TimelineHead,
    TimelinePart,
    extended,
    head_of,
    timeline_of,
)

_MAX_RATES: Final = 20_000
"""The most keys whose rates are limited at once."""


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
        while self._due and (len(self._due) > _MAX_RATES or next(iter(self._due.values())) <= now):
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
"""The most flags, and the most sealed values."""


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


_MAX_EVENTS: Final = 2_000
"""The most events of each part of the audit trail. Fewer than in other backends, because they use this process's
memory."""


class MemoryAuditTrail:
    """Store the newest events of each part of the audit trail. They are lost when the process ends."""

    def __init__(self) -> None:
        self._parts = {part: deque[AuditEvent](maxlen=_MAX_EVENTS) for part in PARTS}

    async def record(self, events: Sequence[AuditEvent]) -> None:
        for part, found in by_part(events).items():
            self._parts[part].extend(found)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        return newest((list(part)[-limit:][::-1] for part in self._parts.values()), limit)


_MAX_TIMELINES: Final = 2_000
"""The most timelines that are stored. Fewer than in other backends, because they use this process's memory."""
_MAX_ENTRY_BYTES: Final = 16 << 20
"""The most bytes of the entries of all timelines together."""


class MemoryTimelines:
    """Store the most recently written timelines, encoded. The timeline of an idle session takes a few hundred bytes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: OrderedDict[str, tuple[float, bytes, bytes]] = OrderedDict()  # written at, head, entries
        self._bytes = 0

    async def add(self, parts: Sequence[TimelinePart]) -> None:
        now = self._clock()
        for part in parts:
            _, head, entries = self._of.pop(part.head.session, (0.0, b"", b""))
            head, lines = extended(head, entries, part, now)
            self._of[part.head.session] = (now, head, lines)
            self._bytes += len(lines) - len(entries)
        self._drop(now)

    def _drop(self, now: float) -> None:
        while self._of:
            session, (at, _, lines) = next(iter(self._of.items()))
            if len(self._of) <= _MAX_TIMELINES and self._bytes <= _MAX_ENTRY_BYTES and at + KEPT_S > now:
                return
            del self._of[session]
            self._bytes -= len(lines)

    async def read(self, session: str) -> Timeline | None:
        self._drop(self._clock())
        found = self._of.get(session)
        return None if found is None else timeline_of(head_of(found[1]), found[2].split(b"\n"))

    async def names(self, begins: str) -> list[str]:
        self._drop(self._clock())
        return sorted(name for name in self._of if name.startswith(begins))

    async def newest(self, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        self._drop(self._clock())
        return [head_of(head) for _, head, _ in islice(reversed(self._of.values()), skip, skip + limit)]


class MemoryHistory:
    """Store the history records of the last day. Only this process writes them, so their number is limited by age
    alone."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[int, str], bytes]] = {step_s: {} for step_s in STEPS}

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        records = self._of[step_s]
        records[record.at, record.replica] = record.body
        oldest = record.at - STEPS[step_s]
        while (first := next(iter(records)))[0] < oldest:
            del records[first]

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        found = [HistoryRecord(at, by, body) for (at, by), body in self._of[step_s].items() if since <= at < until]
        return sorted(found)
