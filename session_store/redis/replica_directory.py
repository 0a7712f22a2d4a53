"""Record live replicas as keys that expire, and the owners of sessions as a field of the session records. Send messages
between replicas by Redis pub/sub."""

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from session_store.ports.errors import StoreUnavailable
from session_store.ports.replica_directory import ConfigurationNumbers, next_epoch
from session_store.record import to_field
from session_store.redis import keys
from session_store.redis.commands import Commands, script
from session_store.redis.connection import TIMEOUT_S, Connection, encoded
from session_store.redis.sessions import RedisSessionStore

_PATIENCE_MS: Final = 50
_AGAIN_S: Final = 1.0
"""Seconds for which no caller waits for the copies (Redis replicas) of a server after these were too slow, so that
claims of sessions do not queue up."""
_MARK_S: Final = 10


class _Copies:
    """Wait for the copies (Redis replicas) of one server, with one `WAIT` command at a time. `WAIT` blocks its
    connection, so it has a connection of its own."""

    def __init__(self, client: Redis) -> None:
        self.connection = Connection(client)
        self._waiting: asyncio.Task[bool] | None = None
        self._next: asyncio.Task[bool] | None = None
        self._missed_until = 0.0

    async def have(self, mark: str) -> bool:
        """Return True if a copy has everything that was written before this call, or if the server has no copies.
        Return False if no copy confirms it in time; for `_AGAIN_S` seconds after that, return False without waiting.
        `mark` is a key on the server, which is overwritten for this.

        A `WAIT` that already runs may not cover the latest writes. So all callers share the next one, and continue in
        the same turn of the event loop. With a lock, one caller would continue in each turn, and turns are long while
        servers start.
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
        role = await self.connection.reply_to(encoded("ROLE"))
        if role[0] == b"master" and not role[2]:
            return True
        # `WAIT` covers only the writes of its own connection.
        marked = self.connection.send(encoded("SET", mark, "1", "EX", _MARK_S))
        copies = self.connection.send(encoded("WAIT", 1, _PATIENCE_MS))
        await asyncio.gather(marked, copies)
        return bool(copies.result())


_BEAT, _CLAIM, _RELEASE = script("beat"), script("claim"), script("release")
_HOLD_CONFIGURATION = script("hold_configuration")
_CLAIMED_KEPT_S: Final = 600
_NAMES_KEPT_S: Final = 86_400
_NAMED_EACH_S: Final = 5.0
"""Seconds after which a replica writes its name into the list of replicas again: a failover may have lost it."""


class RedisDirectory:
    """Store the leases of replicas, and the owners of sessions."""

    def __init__(self, commands: Commands, sessions: RedisSessionStore) -> None:
        self._commands = commands
        self._copies: dict[Redis, _Copies] = {}
        self._sessions = sessions
        self._named_at, self._named = float("-inf"), ("", "")

    def when_connected(self, callback: Callable[[], None]) -> None:
        self._commands.when_connected(callback)

    async def renew_lease(self, replica: str, address: str, lease_s: float, handled: Sequence[str] = ()) -> list[str]:
        lost = await self._commands.call(
            _BEAT, [keys.lease(replica), keys.lost(replica)], address, math.ceil(lease_s * 1_000), *handled
        )
        if monotonic() - self._named_at >= _NAMED_EACH_S or self._named != (replica, address):
            await self._commands.run("HSET", keys.REPLICAS, replica, address)
            await self._commands.run("EXPIRE", keys.REPLICAS, _NAMES_KEPT_S)
            self._named_at, self._named = monotonic(), (replica, address)
        return [session_id.decode() for session_id in lost]

    async def hold_configuration(
        self, replica: str, digest: str, *, number: int, is_edited: bool, hold_s: float
    ) -> ConfigurationNumbers:
        given = (self._sessions.now(), replica, digest, number, int(is_edited), hold_s, _NAMES_KEPT_S)
        own, newest, *holders = await self._commands.call(_HOLD_CONFIGURATION, [keys.CONFIGURATIONS], *given)
        return ConfigurationNumbers(own, newest, tuple(name.decode() for name in holders))

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
        following = next_epoch(epoch)
        reply = await self._sessions.on_record(_CLAIM, session_id, to_field(replica), epoch, following)
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
        client = self._commands.client_for(keys.of_session(session_id)[0])
        copies = self._copies.setdefault(client, _Copies(client))
        return await copies.have(keys.claimed(session_id))

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        return await self._sessions.owners(session_ids)

    def close(self) -> None:
        """Close the connections that are used to wait for copies."""
        for copies in self._copies.values():
            copies.connection.close()

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        return session_id.encode() not in await self._commands.run("LRANGE", keys.lost(replica), 0, -1)

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        return bool(await self._sessions.on_record(_RELEASE, session_id, to_field(replica), epoch))


logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2


class RedisBus:
    """Send messages between replicas by Redis pub/sub. One connection receives the messages of all topics of this
    process."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._client: Redis | None = None
        self._listeners: defaultdict[str, list[Callable[[bytes | None], None]]] = defaultdict(list)
        self._subscribed: dict[str, asyncio.Event] = {}
        self._pubsub: PubSub | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def publish(self, topic: str, data: bytes) -> None:
        await self._commands.run("PUBLISH", topic, data)

    @asynccontextmanager
    async def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AsyncIterator[None]:
        self._listeners[topic].append(receive)
        try:
            await self._subscribe(topic)
            yield
        finally:
            self._listeners[topic].remove(receive)
            if not self._listeners[topic]:
                del self._listeners[topic]
                self._subscribed.pop(topic, None)
                await self._unsubscribe(topic)

    async def _subscribe(self, topic: str) -> None:
        confirmed = self._subscribed.setdefault(topic, asyncio.Event())
        if confirmed.is_set():
            return
        asked = self._pubsub
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self._lock:
                    if self._pubsub is None:
                        self._client = self._commands.client()
                        self._pubsub = self._client.pubsub()
                    await self._pubsub.subscribe(topic)
                    if self._reader is None:
                        # A bare task, which runs until `close`: unlike a run of `SharedRun`, no caller waits for it.
                        self._reader = asyncio.create_task(self._read())
                await confirmed.wait()
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and asked in (None, self._pubsub):  # else that node was left already
                self._leave_node()
            raise StoreUnavailable(f"Redis cannot be reached: {type(error).__name__}") from error

    def _leave_node(self) -> None:
        """Have this process subscribe at another node of a cluster, if there is one. Called when a node does not
        answer, because the connection to it can stay open for hours."""
        client = self._commands.client()
        if client is not self._client:
            if self._reader is not None:
                self._reader.cancel()
            self._reader = asyncio.create_task(self._read(client))

    async def _unsubscribe(self, topic: str) -> None:
        if self._pubsub is not None and self._reader is not None:
            # A failure is harmless: `_dispatch` ignores messages of topics without listeners.
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(TIMEOUT_S):
                    await self._pubsub.unsubscribe(topic)

    async def _read(self, moving_to: Redis | None = None) -> None:
        is_broken = moving_to is not None
        while True:
            try:
                if is_broken:
                    client, moving_to = moving_to or self._commands.client(), None
                    await self._move(client)
                assert self._pubsub is not None
                message = await self._pubsub.get_message(timeout=None)
                if is_broken:
                    is_broken = False
                    for listeners in tuple(self._listeners.values()):
                        self._notify(listeners, None)  # messages may have been missed
                if message is not None:
                    self._dispatch(message)
            except (RedisError, OSError) as error:
                if not is_broken:
                    logger.warning("the connection of the message bus was interrupted: %s", type(error).__name__)
                is_broken = True
                await asyncio.sleep(_RETRY_S)

    async def _move(self, client: Redis) -> None:
        """Subscribe to all topics at the server of `client`, another node of a cluster. Do nothing if it is the present
        one. (redis-py itself would reconnect to the same server.)"""
        if client is self._client or self._pubsub is None:
            return
        async with asyncio.timeout(TIMEOUT_S), self._lock:
            broken, self._client, self._pubsub = self._pubsub, client, client.pubsub()
            with contextlib.suppress(RedisError, OSError):
                await broken.aclose()  # type: ignore[no-untyped-call]  # the driver has no hint here
            if self._subscribed:
                await self._pubsub.subscribe(*self._subscribed)

    def _dispatch(self, message: dict[str, Any]) -> None:
        topic = message["channel"].decode()
        if message["type"] == "subscribe" and topic in self._subscribed:
            self._subscribed[topic].set()
        elif message["type"] == "message":
            self._notify(self._listeners.get(topic, ()), message["data"])

    @staticmethod
    def _notify(listeners: Iterable[Callable[[bytes | None], None]], data: bytes | None) -> None:
        """Call each listener with `data` (None: messages may have been missed). If a listener fails, log the error, and
        go on with the others."""
        for receive in tuple(listeners):
            try:
                receive(data)
            except Exception:
                logger.exception("a listener of the message bus failed")

    async def close(self) -> None:
        """Stop reading messages, and close the subscription connection."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._pubsub is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._pubsub.aclose()  # type: ignore[no-untyped-call]  # the driver has no hint here
