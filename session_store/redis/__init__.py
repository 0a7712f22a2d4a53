"""The production backend: Redis, for many replicas."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from session_store.base import StoreError, StoreUnavailable
from session_store.redis.audit import RedisAuditTrail
from session_store.redis.bus import RedisBus
from session_store.redis.commands import TIMEOUT_S, Commands
from session_store.redis.connection import ServerError
from session_store.redis.directory import RedisDirectory
from session_store.redis.events import RedisEventLog
from session_store.redis.sessions import RedisSessionStore
from session_store.redis.state import RedisStateStore

__all__ = ["RedisBackend", "RedisEventLog"]


class RedisBackend:
    """`redis://`, `rediss://` and `redis+sentinel://`"""

    is_durable = True
    is_shared = True

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        """Connects to nothing yet.

        Raises:
            StoreError: the URL cannot be used.
        """
        try:
            self.client: Redis = _client(url)
        except (RedisError, ValueError) as error:
            raise StoreError(f"the store's URL cannot be used: {error}") from None
        self.commands = Commands(self.client)
        self.sessions = RedisSessionStore(self.commands, clock=clock)
        self.state = RedisStateStore(self.commands, self.sessions)
        self.bus = RedisBus(self.commands, self.client)
        self.events = RedisEventLog(self.commands, self.bus)
        self.directory = RedisDirectory(self.commands, self.sessions)
        self.audit = RedisAuditTrail(self.commands)

    async def open(self) -> None:
        """A server that is not there yet is no reason not to start: readiness says so until it is.

        Raises:
            StoreError: it is there, and refuses us.
        """
        try:
            await self.ping()
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ServerError) and "LOADING" not in str(error):
                raise StoreError(f"the session store refuses us: {error}") from None

    async def ping(self) -> None:
        await self.commands.run("PING")

    async def close(self) -> None:
        await self.bus.close()
        await self.commands.close()
        if isinstance(self.client.connection_pool, SentinelConnectionPool):
            for sentinel in self.client.connection_pool.sentinel_manager.sentinels:
                await sentinel.aclose()


def _client(url: str) -> Redis:
    """redis-py's client for that URL. `redis+sentinel://[user:password@]host[:port][,host…]/service[/db]`."""
    # Nothing is tried twice: an increment whose answer was lost may have happened.
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "mcp-session-gateway",
    }
    parts = urlsplit(url)
    if parts.scheme != "redis+sentinel":
        return Redis.from_url(url, **options)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    places = [(host.partition(":")[0], int(host.partition(":")[2] or 26_379)) for host in hosts]
    service, _, db = parts.path.strip("/").partition("/")
    if parts.password:
        options |= {"username": parts.username or None, "password": parts.password}
    asking = {"socket_timeout": TIMEOUT_S / 2, "socket_connect_timeout": TIMEOUT_S / 2, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(places, sentinel_kwargs=asking, **options)  # type: ignore[no-untyped-call]  # no hint
    master: Redis = sentinel.master_for(service, db=int(db or 0))
    return master
