"""Quotas that all replicas share: one set for each key."""

import math
from collections.abc import Sequence
from typing import Final

from session_store.redis import keys
from session_store.redis.commands import Commands, script

__all__ = ["RedisQuotas"]

_HOLD: Final = script("hold")


class RedisQuotas:
    """The names held under each key."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        reply = await self._commands.call(_HOLD, [keys.quota(key)], name, most, math.ceil(for_s * 1_000))
        return sorted(held.decode() for held in reply)

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        if names:
            await self._commands.run("SREM", keys.quota(key), *names)
