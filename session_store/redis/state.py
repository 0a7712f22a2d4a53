"""Keep the state of sessions in Redis: one hash for each session, and one script for all operations."""

from typing import Any, Final

from session_store.ports.errors import SessionGone
from session_store.ports.state import (
    MAX_INTEGER,
    MAX_STATE_BYTES,
    InvalidState,
    check_key,
    check_total,
    check_value,
    not_an_integer,
)
from session_store.redis import keys
from session_store.redis.commands import Commands, script
from session_store.redis.sessions import RedisSessionStore

__all__ = ["RedisStateStore"]

_STATE: Final = script("state")


class RedisStateStore:
    """Keep state by session and key."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._sessions = sessions

    async def get(self, session_id: str, key: str) -> bytes | None:
        encoded = check_key(key)
        if self._sessions.uses_server_clock:
            # State is deleted and expires together with its session's record, so an existing value belongs to a live
            # session. Only for a missing value, a script has to look for the session.
            value = await self._commands.run("HGET", keys.of_session(session_id)[1], encoded)
            if value is not None:
                return bytes(value)
        value = await self._call(session_id, "get", encoded)
        return None if value is None else bytes(value)

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        await self._call(session_id, "set", check_key(key), check_value(key, value))

    async def delete(self, session_id: str, key: str) -> bool:
        return bool(await self._call(session_id, "delete", check_key(key)))

    async def increment(self, session_id: str, key: str, by: int) -> int:
        if abs(by) > MAX_INTEGER:
            raise InvalidState(f"{key!r} would exceed the range of 64-bit integers")
        return int(await self._call(session_id, "increment", check_key(key), by))

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        new = b"" if value is None else check_value(key, value)
        arguments = (int(expected is not None), expected or b"", int(value is not None), new)
        return bool(await self._call(session_id, "compare_and_set", check_key(key), *arguments))

    async def keys(self, session_id: str) -> list[str]:
        return sorted(key.decode() for key in await self._call(session_id, "keys"))

    async def size(self, session_id: str) -> int:
        return int(await self._call(session_id, "size"))

    async def _call(self, session_id: str, operation: str, key: bytes = b"", *arguments: Any) -> Any:
        """Run an operation, and return its result. `key` is empty for an operation on all keys.

        Raises:
            SessionGone: the session is not live.
            InvalidState: the operation is refused, and nothing was changed.
        """
        reply = await self._commands.call(
            _STATE, keys.of_session(session_id)[:2], self._sessions.now(), MAX_STATE_BYTES, operation, key, *arguments
        )
        match reply[0]:
            case b"ok":
                return reply[1] if len(reply) > 1 else None
            case b"gone":
                raise SessionGone(session_id)
            case b"large":
                check_total(key.decode(), reply[1])
            case b"range":
                raise InvalidState(f"{key.decode()!r} would exceed the range of 64-bit integers")
        raise not_an_integer(key.decode())
