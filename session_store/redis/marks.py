"""Marks that all replicas share, with one Redis key for each."""

import math

from session_store.redis import keys
from session_store.redis.commands import Commands

__all__ = ["RedisMarks"]


class RedisMarks:
    """Names that are set for a limited time."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def set(self, name: str, for_s: float) -> None:
        await self._commands.run("SET", keys.mark(name), "1", "PX", math.ceil(for_s * 1_000))

    async def has(self, name: str) -> bool:
        return await self._commands.run("GET", keys.mark(name)) is not None

    async def drop(self, name: str) -> None:
        await self._commands.run("DEL", keys.mark(name))
