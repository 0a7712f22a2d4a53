"""Run commands and scripts on a Redis server or cluster. Every failure is a `StoreUnavailable`."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from importlib.resources import files
from time import time
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from session_store.ports.errors import StoreUnavailable
from session_store.redis.connection import TIMEOUT_S, Connection, ServerError, SharedRun, encoded

_AT_ONCE: Final = 64
_KEYLESS: Final = frozenset({"CONFIG", "PUBLISH"})
"""Commands whose arguments are no keys, so that any server of a cluster can run them."""

T = TypeVar("T")
Result = TypeVar("Result")


class Script(NamedTuple):
    """A Lua script, and the SHA-1 digest by which `EVALSHA` names it."""

    source: bytes
    digest: str


def script(name: str) -> Script:
    """Return the script of that name from `lua/`, with the common prelude before it."""
    folder = files(__package__) / "lua"
    source = (folder / "prelude.lua").read_bytes() + (folder / f"{name}.lua").read_bytes()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


class Prepared(NamedTuple):
    """A call of a Lua script, encoded in the protocol of Redis (RESP), and the call's first key."""

    packed: bytes
    key: str

    def with_source(self, script: Script) -> bytes:
        """Return the encoded call with the script's source in place of its digest. The server that executes the call
        also stores the script. A command that only stores it would have no key, and in a cluster no command without a
        key reaches the server that a slot is moving to."""
        count, _, arguments = self.packed.partition(b"\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % script.digest.encode())
        size = len(script.source)
        return b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (count, size, script.source, arguments)


def prepared(script: Script, keys: Sequence[str], *arguments: Any) -> Prepared:
    """Return a call of the script with these keys and arguments, encoded, for callers that send the same call many
    times."""
    return Prepared(encoded("EVALSHA", script.digest, len(keys), *keys, *arguments), keys[0])


async def in_parts(work: Callable[[T], Awaitable[Result]], items: Sequence[T]) -> list[Result]:
    """Return the results of `work` for all items, in order. `work` runs for at most `_AT_ONCE` items at the same time:
    the commands for thousands of items, and their replies, would block the event loop."""
    results: list[Result] = []
    for at in range(0, len(items), _AT_ONCE):
        results += await asyncio.gather(*map(work, items[at : at + _AT_ONCE]))
    return results


async def failures_of(replies: Sequence[Awaitable[Any]]) -> list[StoreUnavailable | None]:
    """Wait for the replies to several commands. Return for each, in order, the failure of its command, or None if it
    succeeded. Exceptions other than `StoreUnavailable` are raised."""
    failures: list[StoreUnavailable | None] = []
    for reply in await asyncio.gather(*replies, return_exceptions=True):
        if isinstance(reply, BaseException) and not isinstance(reply, StoreUnavailable):
            raise reply
        failures.append(reply if isinstance(reply, StoreUnavailable) else None)
    return failures


class Commands:
    """Run commands on one server. The subclass `ClusterCommands` is for a cluster."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connected: list[Callable[[], None]] = []
        self._connection = Connection(client, self._connected)

    def when_connected(self, callback: Callable[[], None]) -> None:
        """Have `callback` called each time a connection to a server has opened, as
        `session_store.ports.replica_directory.Directory.when_connected` says."""
        self._connected.append(callback)

    async def run(self, *command: Any) -> Any:
        """Send one command and return its reply. Raises `StoreUnavailable`, also for a command that Redis refuses."""
        has_key = len(command) > 1 and command[0] not in _KEYLESS
        return await self.deliver(str(command[1]) if has_key else None, encoded(*command))

    async def deliver(self, key: str | None, packed: bytes) -> Any:
        """Send an encoded command to the server that has the key, or to any server if `key` is None. Return the reply.
        Raises `StoreUnavailable`."""
        return await self._connection.reply_to(packed)

    async def call(self, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        """Call a script with these keys and arguments, and return its reply. Raises `StoreUnavailable`."""
        return await self.send(prepared(script, keys, *arguments), script)

    async def send(self, prepared: Prepared, script: Script) -> Any:
        """Send a prepared call of `script`, and return its reply. Raises `StoreUnavailable`."""
        try:
            return await self.deliver(prepared.key, prepared.packed)
        except StoreUnavailable as error:
            if "NOSCRIPT" not in str(error):  # a server loses its scripts when it restarts
                raise
        return await self.deliver(prepared.key, prepared.with_source(script))

    async def send_all(self, calls: Sequence[Prepared], script: Script) -> list[StoreUnavailable | None]:
        """Send prepared calls of `script` together, and wait for all replies.

        Return for each call, in order, its failure, or None if it succeeded. Raises `StoreUnavailable` if no call was
        sent.
        """
        if not self._connection.is_open:
            await self._connection.open()
        failures = await failures_of([self._connection.send(call.packed) for call in calls])
        forgotten = [at for at, failure in enumerate(failures) if failure is not None and "NOSCRIPT" in str(failure)]
        again = await failures_of([self.send(calls[at], script) for at in forgotten])
        for at, failure in zip(forgotten, again, strict=True):
            failures[at] = failure
        return failures

    def node_of(self, key: str) -> Hashable:
        """Return an identifier of the server that has the key; None if there is only one server. Callers tell by it
        which keys a failing server has, while other servers answer."""
        return None

    def together(self, keys: Sequence[str]) -> Iterable[Sequence[str]]:
        """Divide the keys into groups, in their order. The keys of one group may be used in one script call."""
        return [keys]

    def client_for(self, key: str) -> Redis:
        """Return redis-py's client for the server that has the key."""
        return self._client

    def client(self) -> Redis:
        """Return redis-py's client for a server of the store, for subscriptions to topics."""
        return self._client

    async def close(self) -> None:
        self._connection.close()
        await asyncio.sleep(0)  # an aborted transport is closed in the next iteration of the event loop
        await self._client.aclose()
        if isinstance(self._client.connection_pool, SentinelConnectionPool):
            for sentinel in self._client.connection_pool.sentinel_manager.sentinels:
                await sentinel.aclose()


class RedisPart:
    """Base class of the parts of the backend that only run commands. `clock` returns seconds since the epoch."""

    def __init__(self, commands: Commands, clock: Callable[[], float] = time) -> None:
        self._commands = commands
        self._clock = clock


_MOST_TRIES: Final = 32
_TRY_AGAIN_S: Final = 0.05
"""Seconds to wait before a command whose keys are being moved to another node is sent again. There is one pause for two
tries, so all `_MOST_TRIES` tries take about 0.8 s."""

_REFRESH_S: Final = 0.2

Address = tuple[str, int]


class ClusterCommands(Commands):
    """Run commands on the nodes of a cluster. Each runs on the node that serves the slot of its first key, because all
    keys of one command share a hash tag (`keys.py`). `seeds`: the nodes of the URL, which are asked for the others.
    `client_at` makes redis-py's client for one node (docs/adr/0004-redis.md)."""

    def __init__(self, seeds: Sequence[Address], client_at: Callable[[Address], Redis]) -> None:
        self._connected: list[Callable[[], None]] = []
        self._seeds = list(seeds)
        self._client_at = client_at
        self._clients: dict[Address, Redis] = {}
        self._connections: dict[Address, Connection] = {}
        self._masters: list[Address] = []
        self._slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._suspects: set[Address] = set()  # nodes whose last command failed: others may have taken over their slots
        self._is_stale = True
        self._read_at = 0.0
        self._reading = SharedRun(self._read_slot_table)
        self._next = 0

    async def send_all(self, calls: Sequence[Prepared], script: Script) -> list[StoreUnavailable | None]:
        return await failures_of([self.send(call, script) for call in calls])

    def node_of(self, key: str) -> Hashable:
        return self._slots[key_slot(key.encode())]

    def together(self, keys: Sequence[str]) -> Iterable[Sequence[str]]:
        return [[key] for key in keys]

    def client_for(self, key: str) -> Redis:
        address = self._slots[key_slot(key.encode())]
        return self.client() if address is None else self._client_of(address)

    async def deliver(self, key: str | None, packed: bytes) -> Any:
        # A node that redirects a command has not executed it, so the command can be sent again.
        slot = None if key is None else key_slot(key.encode())
        importer: Address | None = None
        for _ in range(_MOST_TRIES):
            address = self._address(slot)
            if self._is_stale:
                address = await self._read_again(slot, address)
            if address is None:
                self._is_stale = True
                text = "no node of Redis Cluster serves that slot now"
                raise StoreUnavailable(text, may_have_taken_effect=False)
            address = importer or address
            try:
                return await self._deliver_to(address, packed, is_importer=importer is not None)
            except StoreUnavailable as error:
                if not isinstance(error.__cause__, ServerError):
                    raise
                refusal, details = error, str(error.__cause__).split(" ")
            importer = None
            match details:
                case ["MOVED", _, to] if slot is not None:
                    self._slots[slot] = master = _redirected(to, address)
                    self._serve_from([*self._masters, master])
                    self._is_stale = True
                case ["ASK", _, to]:
                    importer = _redirected(to, address)
                case ["TRYAGAIN", *_]:  # of an importer: it has some of the keys, and the other node has the rest
                    await asyncio.sleep(_TRY_AGAIN_S)
                case _:
                    if details[0] in ("CLUSTERDOWN", "READONLY"):
                        self._suspect(address)
                    raise refusal
        text = "a slot of Redis Cluster moved for too long during one command"
        raise StoreUnavailable(text, may_have_taken_effect=False)

    async def _deliver_to(self, address: Address, packed: bytes, *, is_importer: bool) -> Any:
        """Send a command to a node, and return its reply. `is_importer`: the node imports the slot, and may already
        have keys of the slot. Such a node takes a command only after `ASKING`, which applies to the next command of the
        connection alone. So nothing is awaited between the two."""
        connection = self._connection_to(address)
        try:
            if not is_importer:
                reply = await connection.reply_to(packed)
            else:
                if not connection.is_open:
                    await connection.open()
                _, reply = await asyncio.gather(connection.send(encoded("ASKING")), connection.send(packed))
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, ServerError):
                self._suspect(address)
            raise
        self._suspects.discard(address)
        return reply

    # -- the slot table

    def _address(self, slot: int | None) -> Address | None:
        return self._any_master() if slot is None else self._slots[slot]

    def _suspect(self, address: Address) -> None:
        self._suspects.add(address)
        self._is_stale = True

    async def _read_again(self, slot: int | None, known: Address | None) -> Address | None:
        """Return the node that serves the slot (None: any node), after the slot table was read again. It is not read if
        it has just been read. `known`: the node according to the present table.

        Concurrent callers share one read. Callers whose node is not suspect do not wait for it, so that a dead node
        does not delay the slots of others.
        """
        if self._masters and asyncio.get_running_loop().time() - self._read_at < _REFRESH_S:
            return known
        if known is None or known in self._suspects:
            await self._reading.done()
            return self._address(slot)
        self._reading.start()
        return known

    async def _read_slot_table(self) -> None:
        failure = StoreUnavailable("no node of Redis Cluster is known")
        for address in sorted(dict.fromkeys([*self._masters, *self._seeds]), key=self._suspects.__contains__):
            try:
                ranges = await self._connection_to(address).reply_to(encoded("CLUSTER", "SLOTS"))
            except StoreUnavailable as error:
                self._suspects.add(address)
                failure = error
                continue
            slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
            for first, last, master, *_ in ranges:
                at = (master[0].decode() or address[0], int(master[1]))
                slots[first : last + 1] = [at] * (last + 1 - first)
            if any(slots):
                self._slots = slots
                self._serve_from(at for at in slots if at is not None)
                self._suspects.intersection_update(self._masters)
                self._is_stale = None in slots
                self._read_at = asyncio.get_running_loop().time()
                return
            failure = StoreUnavailable(
                "Redis Cluster has no slots: check that the servers are a cluster and that it has been created"
            )
        failure.changed_nothing()  # the callers' commands wait for the table
        raise failure

    def _serve_from(self, masters: Iterable[Address]) -> None:
        """Set the master nodes, which serve the slots. A failover makes a copy a master, and breaks no open connection
        to this copy. So an open connection to a new master counts as a new one (`when_connected`)."""
        earlier, self._masters = self._masters, list(dict.fromkeys(masters))
        promoted = {*self._masters} - {*earlier} if earlier else set()
        if any(at in self._connections and self._connections[at].is_open for at in promoted):
            for callback in self._connected:
                callback()

    def _any_master(self) -> Address | None:
        """Return the address of the cluster's next master node, in turn; None if none is known. Skip nodes whose last
        command failed, unless all have failed."""
        self._next += 1
        masters = [at for at in self._masters if at not in self._suspects] if self._suspects else self._masters
        masters = masters or self._masters
        return masters[self._next % len(masters)] if masters else None

    # -- connections

    def client(self) -> Redis:
        """Return redis-py's client for the next node of the cluster, in turn, for subscriptions to topics."""
        return self._client_of(self._any_master() or self._seeds[self._next % len(self._seeds)])

    def _client_of(self, address: Address) -> Redis:
        if address not in self._clients:
            self._clients[address] = self._client_at(address)
        return self._clients[address]

    def _connection_to(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(self._client_of(address), self._connected)
        return self._connections[address]

    async def close(self) -> None:
        self._reading.cancel()
        for connection in self._connections.values():
            connection.close()
        await asyncio.sleep(0)  # an aborted transport is closed in the next iteration of the event loop
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*(client.aclose() for client in self._clients.values()), return_exceptions=True)


def _redirected(text: str, sender: Address) -> Address:
    """Return the address of the node to which a redirection (`MOVED`, `ASK`) leads. `text`: HOST:PORT from it. Without
    a host, it is another port of the sender's host."""
    host, _, port = text.rpartition(":")
    return host or sender[0], int(port)
