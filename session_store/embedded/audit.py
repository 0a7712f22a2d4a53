"""Keep the audit trail in memory. No I/O."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from session_store.ports.audit import PARTS, AuditEvent, by_part, newest

MAX_EVENTS: Final = 2_000
"""The most events of each part of the audit trail. Fewer than in other backends, because they use this process's
memory."""


class MemoryAuditTrail:
    """Store the newest events of each part of the audit trail. They are lost when the process ends."""

    def __init__(self) -> None:
        self._parts = {part: deque[AuditEvent](maxlen=MAX_EVENTS) for part in PARTS}

    async def record(self, events: Sequence[AuditEvent]) -> None:
        for part, found in by_part(events).items():
            self._parts[part].extend(found)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        return newest((list(part)[-limit:][::-1] for part in self._parts.values()), limit)
