"""Waits a short while until a copy of the server (a Redis replica) has the last claim.

`WAIT` holds up its connection, so it has one of its own. Claims that come together share one `WAIT`.
"""

import asyncio
import contextlib
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
    """A server whose copies are waited for, one `WAIT` at a time."""

    def __init__(self, client: Redis) -> None:
        self.connection = Connection(client)
        self._waiting: asyncio.Task[bool] | None = None
        self._next: asyncio.Task[bool] | None = None
        self._missed_until = 0.0

    async def have(self, mark: str) -> bool:
        """Whether a copy has what was written until now. `mark` is a key on that server.

        A wait that is under way may not show that. All who ask meanwhile share the next one, and go on in one turn of
        the event loop. Behind a lock they would go on one in each turn, and the turns are long while servers start.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._wait_after(self._waiting, mark))
        return await asyncio.shield(self._next)

    async def _wait_after(self, earlier: asyncio.Task[bool] | None, mark: str) -> bool:
        if earlier is not None:
            await asyncio.wait((earlier,))
        self._waiting, self._next = self._next, None
        clock = asyncio.get_running_loop().time
        if clock() < self._missed_until:
            return False
        has_it = False
        with contextlib.suppress(StoreUnavailable):
            has_it = await self._wait(mark)
        if not has_it:
            self._missed_until = clock() + _AGAIN_S
        return has_it

    async def _wait(self, mark: str) -> bool:
        if not self.connection.is_open:
            await self.connection.open()
        role = await self.connection.send(_packed("ROLE"))
        if role[0] == b"master" and not role[2]:
            return True
        # `WAIT` is for what its own connection has written.
        marked = self.connection.send(_packed("SET", mark, "1", "EX", _MARK_S))
        copies = self.connection.send(_packed("WAIT", 1, _PATIENCE_MS))
        await asyncio.gather(marked, copies)
        return bool(copies.result())


class Copies:
    """The copies of the servers that `commands` are sent to."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._servers: dict[Redis, _Server] = {}

    async def have(self, session_id: str) -> bool:
        """Whether a copy has what was written of that session, or there is none. False too if that is unknown."""
        client = self._commands.client_for(keys.of_session(session_id)[0])
        server = self._servers.setdefault(client, _Server(client))
        return await server.have(keys.claimed(session_id))

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers.values():
            server.connection.close()


def _packed(*command: Any) -> bytes:
    return bytes(hiredis.pack_command(command))
