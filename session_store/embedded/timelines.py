"""Keep timelines, and the history of metrics, in memory. No I/O."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from session_store.ports.timelines import (
    KEPT_S,
    STEPS,
    HistoryRecord,
    Timeline,
    TimelineHead,
    TimelinePart,
    joined,
    merged,
    timeline_of,
)


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


MAX_SESSIONS: Final = 2_000
"""The most timelines that are stored. Fewer than in other backends, because they use this process's memory."""
MAX_BYTES: Final = 16 << 20
"""The most bytes of the entries of all timelines together."""
_heads: Final = msgspec.json.Decoder(TimelineHead)


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
            known = _heads.decode(head) if head else None
            lines = joined(entries, part.entries)
            self._of[part.head.session] = (now, msgspec.json.encode(merged(known, part, now)), lines)
            self._bytes += len(lines) - len(entries)
        self._drop(now)

    def _drop(self, now: float) -> None:
        while self._of:
            session, (at, _, lines) = next(iter(self._of.items()))
            if len(self._of) <= MAX_SESSIONS and self._bytes <= MAX_BYTES and at + KEPT_S > now:
                return
            del self._of[session]
            self._bytes -= len(lines)

    async def read(self, session: str) -> Timeline | None:
        self._drop(self._clock())
        found = self._of.get(session)
        return None if found is None else timeline_of(_heads.decode(found[1]), found[2].split(b"\n"))

    async def names(self, begins: str) -> list[str]:
        self._drop(self._clock())
        return sorted(name for name in self._of if name.startswith(begins))

    async def newest(self, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        self._drop(self._clock())
        return [_heads.decode(head) for _, head, _ in islice(reversed(self._of.values()), skip, skip + limit)]
