"""Live replicas as keys that expire, and owners as a field of the session records."""

import math
from collections.abc import Sequence
from time import monotonic
from typing import Final

import msgspec

from session_store.epochs import next_epoch
from session_store.record import to_field
from session_store.redis import keys
from session_store.redis.commands import Commands, in_parts, script
from session_store.redis.copies import Copies
from session_store.redis.sessions import RedisSessionStore

__all__ = ["RedisDirectory"]

_BEAT, _CLAIM, _RELEASE, _OWNERS = script("beat"), script("claim"), script("release"), script("owners")
_CLAIMED_KEPT_S: Final = 600
_ASKED_AT_ONCE: Final = 256
_NAMES_KEPT_S: Final = 86_400
_NAMED_EACH_S: Final = 5.0
"""How often a replica puts its name into the list again, which a failover may have forgotten."""


class RedisDirectory:
    """The replicas that have a lease, and the owners of sessions."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._copies = Copies(commands)
        self._sessions = sessions
        self._named_at, self._named = float("-inf"), ("", "")

    async def renew_lease(self, replica: str, address: str, lease_s: float) -> list[str]:
        lost = await self._commands.call(
            _BEAT, [keys.lease(replica), keys.lost(replica)], address, math.ceil(lease_s * 1_000)
        )
        if monotonic() - self._named_at >= _NAMED_EACH_S or self._named != (replica, address):
            await self._commands.run("HSET", keys.REPLICAS, replica, address)
            await self._commands.run("EXPIRE", keys.REPLICAS, _NAMES_KEPT_S)
            self._named_at, self._named = monotonic(), (replica, address)
        return [session_id.decode() for session_id in lost]

    async def end_lease(self, replica: str) -> None:
        await self._commands.run("DEL", keys.lease(replica))
        await self._commands.run("HDEL", keys.REPLICAS, replica)

    async def address(self, replica: str) -> str | None:
        address = await self._commands.run("GET", keys.lease(replica))
        return None if address is None else address.decode()

    async def lease_left(self, replica: str) -> float | None:
        left_ms: int = await self._commands.run("PTTL", keys.lease(replica))
        return left_ms / 1_000 if left_ms > 0 else None

    async def last_address(self, replica: str) -> str | None:
        address = await self._commands.run("HGET", keys.REPLICAS, replica)
        return None if address is None else address.decode()

    async def replicas(self) -> dict[str, str]:
        names = [name.decode() for name in await self._commands.run("HKEYS", keys.REPLICAS)]
        live: dict[str, str] = {}
        for name in sorted(names):
            address = await self.address(name)
            if address is not None:
                live[name] = address
        return live

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        record = keys.of_session(session_id)[:1]
        following = next_epoch(epoch)
        reply = await self._commands.call(_CLAIM, record, self._sessions.now(), to_field(replica), epoch, following)
        if reply is None:
            return None
        owner = msgspec.json.decode(reply, type=str)
        if owner and owner != replica:
            await self.tell_lost(owner, [session_id])
        return following

    async def tell_lost(self, replica: str, session_ids: Sequence[str]) -> None:
        await self._commands.run("RPUSH", keys.lost(replica), *session_ids)
        await self._commands.run("EXPIRE", keys.lost(replica), _CLAIMED_KEPT_S)

    async def copied(self, session_id: str) -> bool:
        return await self._copies.have(session_id)

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        records = [keys.of_session(session_id)[0] for session_id in session_ids]
        asked = [
            some
            for part in range(0, len(records), _ASKED_AT_ONCE)
            for some in self._commands.together(records[part : part + _ASKED_AT_ONCE])
        ]
        replies = await in_parts(lambda some: self._commands.call(_OWNERS, some, self._sessions.now()), asked)
        return [_owner(*found) if found else None for reply in replies for found in reply]

    def close(self) -> None:
        """Close the connections of its own."""
        self._copies.close()

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        return session_id.encode() not in await self._commands.run("LRANGE", keys.lost(replica), 0, -1)

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        record = keys.of_session(session_id)[:1]
        return bool(await self._commands.call(_RELEASE, record, self._sessions.now(), to_field(replica), epoch))


def _owner(epoch: bytes, owner: bytes) -> tuple[str, int]:
    return msgspec.json.decode(owner, type=str), int(epoch)
