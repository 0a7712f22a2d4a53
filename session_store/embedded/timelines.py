"""`TimelineStore` in this process."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from session_store.ports.timelines import KEPT_S, Timeline, TimelineHead, TimelinePart
from session_store.timelines import joined, merged, timeline_of

__all__ = ["MemoryTimelines"]

MAX_SESSIONS: Final = 2_000
"""Fewer than other backends keep, because they take memory of this process."""

MAX_BYTES: Final = 16 << 20
"""Of all entries together."""

_heads: Final = msgspec.json.Decoder(TimelineHead)


class MemoryTimelines:
    """The timelines that were written last, encoded: a session that rests costs a few hundred bytes."""

    def __init__(
        self, clock: Callable[[], float], *, max_sessions: int = MAX_SESSIONS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
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
            if len(self._of) <= self._max_sessions and self._bytes <= self._max_bytes and at + KEPT_S > now:
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
