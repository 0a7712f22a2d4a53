"""Keep the audit trail in Redis, for all replicas."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from session_store.ports.audit import MAX_AUDIT_EVENTS, PARTS, AuditEvent, Part, by_part, newest
from session_store.redis import keys
from session_store.redis.commands import RedisPart, script

_KEPT_S: Final = 30 * 86_400
_AT_ONCE: Final = 200
_RECORD: Final = script("record")


class RedisAuditTrail(RedisPart):
    """Store the newest audit events of all replicas, in one Redis stream of limited length for each part of the
    trail."""

    async def record(self, events: Sequence[AuditEvent]) -> None:
        for part, found in by_part(events).items():
            bodies = [msgspec.json.encode(event) for event in found]
            for start in range(0, len(bodies), _AT_ONCE):
                some = bodies[start : start + _AT_ONCE]
                await self._commands.call(_RECORD, [keys.audit(part)], MAX_AUDIT_EVENTS, _KEPT_S, *some)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        return newest(await asyncio.gather(*(self._newest(part, limit) for part in PARTS)), limit)

    async def _newest(self, part: Part, limit: int) -> list[AuditEvent]:
        entries = await self._commands.run("XREVRANGE", keys.audit(part), "+", "-", "COUNT", limit)
        return [msgspec.json.decode(body, type=AuditEvent) for _, (_, body) in entries]
