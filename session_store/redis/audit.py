"""The audit trail as one capped stream."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import msgspec

from session_store.base import AuditEvent
from session_store.redis.commands import Commands
from session_store.redis.keys import AUDIT

__all__ = ["RedisAuditTrail"]

MAX_AUDIT_EVENTS: Final = 10_000
_KEPT_S: Final = 30 * 86_400


class RedisAuditTrail:
    """The newest events of all replicas."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def record(self, events: Sequence[AuditEvent]) -> None:
        adding = [
            self._commands.run(
                "XADD", AUDIT, "MAXLEN", "~", MAX_AUDIT_EVENTS, "*", "event", msgspec.json.encode(asdict(event))
            )
            for event in events
        ]
        await asyncio.gather(*adding)
        await self._commands.run("EXPIRE", AUDIT, _KEPT_S)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        entries = await self._commands.run("XREVRANGE", AUDIT, "+", "-", "COUNT", limit)
        bodies = [values[b"event"] if isinstance(values, dict) else values[1] for _, values in entries]
        return [msgspec.json.decode(body, type=AuditEvent) for body in bodies]
