"""`AuditTrail` in this process."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from session_store.audit import PARTS, by_part, newest
from session_store.ports.audit import AuditEvent

__all__ = ["MemoryAuditTrail"]

MAX_EVENTS: Final = 2_000
"""Of each part of the audit trail: fewer than other backends keep, because they take memory of this process."""


class MemoryAuditTrail:
    """The newest events of each part of the trail (`session_store.audit.Part`). They are lost with the process."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._parts = {part: deque[AuditEvent](maxlen=max_events) for part in PARTS}

    async def record(self, events: Sequence[AuditEvent]) -> None:
        for part, found in by_part(events).items():
            self._parts[part].extend(found)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        return newest((list(part)[-limit:][::-1] for part in self._parts.values()), limit)
