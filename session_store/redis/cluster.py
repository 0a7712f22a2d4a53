"""Redis Cluster: sends each command to the node that serves the slot of its key, and follows moved slots.

All keys of one command share a hash tag (`keys.py`), so its first key says where it goes. The connections are our own,
one for each node, as on a single server (docs/adr/0004-redis.md).
"""

import asyncio
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis
from redis.asyncio import Redis

from session_store.ports.errors import StoreUnavailable
from session_store.redis.commands import Commands, Prepared, Script
from session_store.redis.connection import TIMEOUT_S, Connection, ServerError
from session_store.redis.shared_run import SharedRun

__all__ = ["ClusterCommands", "slot_of"]

SLOTS: Final = 16_384
_KEYLESS: Final = frozenset({"PING", "TIME", "PUBLISH"})
_MOST_REDIRECTIONS: Final = 8
_AGAIN_S: Final = 0.05
_REFRESH_S: Final = 0.2

Place = tuple[str, int]


def slot_of(key: str) -> int:
    """The slot of a key (Redis Cluster specification, Key distribution model)."""
    start = key.find("{")
    if start >= 0 and (end := key.find("}", start + 1)) > start + 1:
        key = key[start + 1 : end]
    return binascii.crc_hqx(key.encode(), 0) % SLOTS


class ClusterCommands(Commands):
    """As `Commands`, on many servers. `client_at` gives redis-py's client for one of them."""

    def __init__(self, seeds: Sequence[Place], client_at: Callable[[Place], Redis]) -> None:
        self._seeds = list(seeds)
        self._client_at = client_at
        self._clients: dict[Place, Redis] = {}
        self._connections: dict[Place, Connection] = {}
        self._masters: list[Place] = []
        self._slots: list[Place | None] = [None] * SLOTS
        self._is_stale = True
        self._read_at = 0.0
        self._reading = SharedRun(self._read)
        self._next = 0

    async def run(self, *command: Any) -> Any:
        slot = None if command[0] in _KEYLESS else slot_of(str(command[1]))
        return await self._send(slot, _packed(*command))

    async def send(self, prepared: Prepared, script: Script) -> Any:
        slot = slot_of(prepared.key)
        try:
            return await self._send(slot, prepared.packed)
        except StoreUnavailable as error:
            if "NOSCRIPT" not in str(error):  # a node that was restarted has none
                raise
        await self._send(slot, _packed("SCRIPT", "LOAD", script.source))
        return await self._send(slot, prepared.packed)

    async def _send(self, slot: int | None, packed: bytes) -> Any:
        """The reply of the node that has the slot, or of any. Redirected commands have not been executed elsewhere."""
        for _ in range(_MOST_REDIRECTIONS):
            if self._is_stale:
                await self._read_slots()
            place = self._slots[slot] if slot is not None else self._any_master()
            if place is None:
                self._is_stale = True
                raise StoreUnavailable("no node of Redis Cluster serves that slot now")
            try:
                connection = self._connection_to(place)
                if not connection.is_open:
                    await connection.open()
                return await connection.send(packed)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, ServerError):
                    self._is_stale = True  # the node may have gone, and another have its slots
                    raise
                refusal, words = error, str(error.__cause__).split(" ")
            match words:
                case ["MOVED", _, to] if slot is not None:
                    self._slots[slot] = _place(to, place)
                    self._is_stale = True
                case ["ASK", _, to]:
                    return await self._ask(_place(to, place), packed)
                case ["TRYAGAIN", *_]:
                    await asyncio.sleep(_AGAIN_S)
                case _:
                    self._is_stale = self._is_stale or words[0] in ("CLUSTERDOWN", "READONLY")
                    raise refusal
        raise StoreUnavailable("a slot of Redis Cluster moved several times during one command")

    async def _ask(self, place: Place, packed: bytes) -> Any:
        """A slot is moving there, and its key has moved already. Both commands go out in one turn of the loop."""
        connection = self._connection_to(place)
        if not connection.is_open:
            await connection.open()
        asking = connection.send(_packed("ASKING"))
        reply = connection.send(packed)
        await asyncio.gather(asking, reply)
        return reply.result()

    # -- who has which slot

    async def _read_slots(self) -> None:
        """Read the slot table again, unless it has just been read. Concurrent callers share one read."""
        loop = asyncio.get_running_loop()
        if self._masters and loop.time() - self._read_at < _REFRESH_S:
            return
        await self._reading.done()

    async def _read(self) -> None:
        failure: StoreUnavailable | None = None
        for place in dict.fromkeys([*self._masters, *self._seeds]):
            try:
                connection = self._connection_to(place)
                if not connection.is_open:
                    await connection.open()
                ranges = await connection.send(_packed("CLUSTER", "SLOTS"))
            except StoreUnavailable as error:
                failure = error
                continue
            slots: list[Place | None] = [None] * SLOTS
            for first, last, master, *_ in ranges:
                at = (master[0].decode() or place[0], int(master[1]))
                slots[first : last + 1] = [at] * (last + 1 - first)
            if any(slots):
                self._slots = slots
                self._masters = list(dict.fromkeys(at for at in slots if at is not None))
                self._is_stale = None in slots
                self._read_at = asyncio.get_running_loop().time()
                return
            failure = StoreUnavailable(
                "Redis Cluster has no slots: check that the servers are a cluster and that it has been created"
            )
        raise failure or StoreUnavailable("no node of Redis Cluster is known")

    def _any_master(self) -> Place | None:
        """Not always the same, so that a dead one does not stand for all."""
        self._next += 1
        return self._masters[self._next % len(self._masters)] if self._masters else None

    # -- connections

    def client(self) -> Redis:
        """redis-py's client for a node; another one each time."""
        places = self._masters or self._seeds
        self._next += 1
        return self._client_of(places[self._next % len(places)])

    def _client_of(self, place: Place) -> Redis:
        if place not in self._clients:
            self._clients[place] = self._client_at(place)
        return self._clients[place]

    def _connection_to(self, place: Place) -> Connection:
        if place not in self._connections:
            self._connections[place] = Connection(self._client_of(place))
        return self._connections[place]

    async def close(self) -> None:
        self._reading.cancel()
        for connection in self._connections.values():
            connection.close()
        await asyncio.sleep(0)  # a connection that is cut is closed with the loop's next turn
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(client.aclose() for client in self._clients.values()), return_exceptions=True)


def _place(text: str, before: Place) -> Place:
    """The address that a redirection names. Without a host, it is another port of the same host."""
    host, _, port = text.rpartition(":")
    return host or before[0], int(port)


def _packed(*command: Any) -> bytes:
    return bytes(hiredis.pack_command(command))
