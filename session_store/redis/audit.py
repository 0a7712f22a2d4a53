"""The audit trail as one capped stream."""

from collections.abc import Sequence
from typing import Final

import msgspec

from session_store.base import AuditEvent
from session_store.redis.commands import Commands, script
from session_store.redis.keys import AUDIT

__all__ = ["RedisAuditTrail"]

MAX_AUDIT_EVENTS: Final = 10_000
_KEPT_S: Final = 30 * 86_400
_AT_ONCE: Final = 200
_RECORD: Final = script("record")


class RedisAuditTrail:
    """The newest events of all replicas."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def record(self, events: Sequence[AuditEvent]) -> None:
        bodies = [msgspec.json.encode(event) for event in events]
        for start in range(0, len(bodies), _AT_ONCE):
            part = bodies[start : start + _AT_ONCE]
            await self._commands.call(_RECORD, [AUDIT], MAX_AUDIT_EVENTS, _KEPT_S, *part)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        entries = await self._commands.run("XREVRANGE", AUDIT, "+", "-", "COUNT", limit)
        bodies = [values[b"event"] if isinstance(values, dict) else values[1] for _, values in entries]
        return [msgspec.json.decode(body, type=AuditEvent) for body in bodies]
