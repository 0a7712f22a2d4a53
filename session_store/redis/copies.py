"""Waits a short while until a copy of the server (a Redis replica) has the last claim.

`WAIT` holds up its connection, so it has one of its own. Claims that come together share one `WAIT`.
"""

import asyncio
from typing import Any, Final

import hiredis
from redis.asyncio import Redis

from session_store.ports.errors import StoreUnavailable
from session_store.redis import keys
from session_store.redis.commands import Commands
from session_store.redis.connection import Connection

__all__ = ["Copies"]

_PATIENCE_MS: Final = 50
_AGAIN_S: Final = 1.0
"""How long nobody waits for the copies of a server after they were too slow: claims must not queue behind them."""
_MARK_S: Final = 10


class _Server:
    """A server whose copies are waited for. `good_since`: what was written before then is in one of them."""

    def __init__(self, client: Redis) -> None:
        self.connection = Connection(client)
        self.lock = asyncio.Lock()
        self.good_since = self.missed_until = 0.0


class Copies:
    """The copies of the servers that `commands` are sent to."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._servers: dict[Redis, _Server] = {}

    async def have(self, session_id: str) -> bool:
        """Whether a copy has what was written of that session, or there is none. False too if that is unknown."""
        clock = asyncio.get_running_loop().time
        asked, client = clock(), self._commands.client_for(keys.of_session(session_id)[0])
        server = self._servers.setdefault(client, _Server(client))
        async with server.lock:
            if server.good_since > asked:
                return True
            if (began := clock()) < server.missed_until:
                return False
            has_it = False
            try:
                has_it = await self._wait(server.connection, keys.claimed(session_id))
            except StoreUnavailable:
                pass
            if has_it:
                server.good_since = began
            else:
                server.missed_until = clock() + _AGAIN_S
            return has_it

    async def _wait(self, connection: Connection, mark: str) -> bool:
        if not connection.is_open:
            await connection.open()
        role = await connection.send(_packed("ROLE"))
        if role[0] == b"master" and not role[2]:
            return True
        # `WAIT` is for what its own connection has written.
        marked = connection.send(_packed("SET", mark, "1", "EX", _MARK_S))
        copies = connection.send(_packed("WAIT", 1, _PATIENCE_MS))
        await asyncio.gather(marked, copies)
        return bool(copies.result())

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers.values():
            server.connection.close()


def _packed(*command: Any) -> bytes:
    return bytes(hiredis.pack_command(command))
