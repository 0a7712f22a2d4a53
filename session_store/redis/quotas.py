"""Keep rates, quotas, expiring flags and sealed values in Redis, for all replicas."""

import math
from collections.abc import Sequence
from typing import Final

from session_store.redis import keys
from session_store.redis.commands import Commands, RedisPart, script
from session_store.redis.sessions import RedisSessionStore

_RATE: Final = script("rate")


class RedisRates:
    """Limit rates for all replicas. Each key has one number, which a Lua script reads and changes."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._sessions = sessions

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        limits = (repr(1.0 / per_s), burst, times, within_s)
        reply = await self._commands.call(_RATE, [keys.hashed("rate", key)], self._sessions.now(), *limits)
        return float(reply)


_HOLD: Final = script("hold")


class RedisQuotas(RedisPart):
    """Limit how many names (of things in use) are held under each key, for all replicas. The names of a key are in one
    Redis set, which expires."""

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        reply = await self._commands.call(_HOLD, [keys.hashed("quota", key)], name, most, math.ceil(for_s * 1_000))
        return sorted(held.decode() for held in reply)

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        if names:
            await self._commands.run("SREM", keys.hashed("quota", key), *names)


class RedisExpiringFlags(RedisPart):
    """Store flags as Redis keys that expire."""

    async def set(self, name: str, for_s: float) -> None:
        await self._commands.run("SET", keys.hashed("mark", name), "1", "PX", math.ceil(for_s * 1_000))

    async def has(self, name: str) -> bool:
        return await self._commands.run("GET", keys.hashed("mark", name)) is not None

    async def drop(self, name: str) -> None:
        await self._commands.run("DEL", keys.hashed("mark", name))


_REPLACE: Final = script("replace")


class RedisSealedValues(RedisPart):
    """Store values as Redis keys that expire. The name of a removed value stays in the list of names until the value
    would have expired: the list is in another slot, so removing the name there could hit a newer value of that name."""

    async def get(self, name: str) -> bytes | None:
        found: bytes | None = await self._commands.run("GET", keys.hashed("sealed", name))
        return found

    async def replace(self, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0) -> bool:
        if after is not None:
            now = self._clock()
            await self._commands.run("ZREMRANGEBYSCORE", keys.SEALED, "-inf", now)
            await self._commands.run("ZADD", keys.SEALED, "GT", now + for_s, name)
        key, for_ms = keys.hashed("sealed", name), math.ceil(for_s * 1_000)
        return bool(await self._commands.call(_REPLACE, [key], before or b"", after or b"", for_ms))

    async def names(self) -> list[str]:
        return [name.decode() for name in await self._commands.run("ZRANGE", keys.SEALED, 0, -1)]
