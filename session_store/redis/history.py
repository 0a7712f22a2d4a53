"""The history of the figures of all replicas: a hash for each stretch of time."""

from typing import Final

from session_store.ports.history import STEPS, HistoryRecord
from session_store.redis import keys
from session_store.redis.commands import Commands

__all__ = ["RedisHistory"]

_STEPS_A_HASH: Final = 60


class RedisHistory:
    """Records by time and replica, `_STEPS_A_HASH` steps of all replicas in each hash."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        stretch_s = step_s * _STEPS_A_HASH
        key = keys.history(step_s, record.at // stretch_s)
        await self._commands.run("HSET", key, f"{record.at}:{record.replica}", record.body)
        await self._commands.run("EXPIRE", key, int(STEPS[step_s] + stretch_s))

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        stretch_s = step_s * _STEPS_A_HASH
        found = []
        for stretch in range(since // stretch_s, (until - 1) // stretch_s + 1):
            flat = await self._commands.run("HGETALL", keys.history(step_s, stretch))
            fields = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
            for field, body in fields:
                at, _, replica = field.decode().partition(":")
                if since <= int(at) < until:
                    found.append(HistoryRecord(int(at), replica, body))
        return sorted(found)
