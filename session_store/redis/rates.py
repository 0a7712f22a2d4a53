"""Rates that all replicas share: one number for each key, changed by one script."""

from typing import Final

from session_store.redis import keys
from session_store.redis.commands import Commands, script
from session_store.redis.sessions import RedisSessionStore

__all__ = ["RedisRates"]

_RATE: Final = script("rate")


class RedisRates:
    """Rates by key."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._sessions = sessions

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        every = repr(1.0 / per_s)
        reply = await self._commands.call(_RATE, [keys.rate(key)], self._sessions.now(), every, burst, times, within_s)
        return float(reply)
