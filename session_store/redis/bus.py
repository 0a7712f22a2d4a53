"""Send messages between replicas by Redis pub/sub, on a separate connection that reconnects by itself."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from session_store.ports.errors import StoreUnavailable
from session_store.redis.commands import Commands
from session_store.redis.connection import TIMEOUT_S

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.2


class RedisBus:
    """Receive the messages of all topics of this process over one subscription connection."""

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
        """Subscribe at another node of a cluster, because the connection to a node that does not answer can stay open
        for hours."""
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
        """Subscribe at another node of a cluster. (redis-py itself would reconnect to the same server.)"""
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
        """Call each listener. If one fails, log the error, and go on with the others."""
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
