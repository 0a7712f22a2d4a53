"""Provide the production backend: Redis, for many replicas."""

from collections.abc import Callable, Sequence
from time import time
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from session_store.ports.backend import Observation
from session_store.ports.errors import StoreError, StoreUnavailable
from session_store.redis import accounting, keys
from session_store.redis.commands import ClusterCommands, Commands
from session_store.redis.connection import TIMEOUT_S, ServerError
from session_store.redis.events import RedisEventLog
from session_store.redis.replica_directory import RedisBus, RedisDirectory
from session_store.redis.server_checks import inspect
from session_store.redis.sessions import RedisSessionStore, RedisStateStore
from session_store.redis.tasks import RedisTasks
from session_store.token_signing import KeyRing

__all__ = ["RedisBackend", "RedisEventLog"]


class RedisBackend:
    """Keep everything in Redis, for many replicas: the backend of `redis://`, `rediss://`, `redis+sentinel://`,
    `redis+cluster://` and `rediss+cluster://` URLs."""

    is_durable = True
    is_shared = True
    needs_keys = True

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        """Prepare the backend for that URL. Does not connect yet.

        Raises:
            StoreError: the URL cannot be used.
        """
        try:
            self.commands = _commands(url)
        except (RedisError, ValueError) as error:
            raise StoreError(f"the store's URL is invalid: {error}") from None
        self.sessions = RedisSessionStore(self.commands, clock=clock)
        self.state = RedisStateStore(self.commands, self.sessions)
        self.bus = RedisBus(self.commands)
        self.events = RedisEventLog(self.commands, self.bus)
        self.directory = RedisDirectory(self.commands, self.sessions)
        self.tasks = RedisTasks(self.commands, clock or time)
        self.audit = accounting.RedisAuditTrail(self.commands)
        self.timelines = accounting.RedisTimelines(self.commands, clock or time)
        self.history = accounting.RedisHistory(self.commands)
        self.quotas = accounting.RedisQuotas(self.commands)
        self.flags = accounting.RedisExpiringFlags(self.commands)
        self.sealed = accounting.RedisSealedValues(self.commands, clock or time)
        self.rates = accounting.RedisRates(self.commands, self.sessions)

    def own_keys(self) -> KeyRing:
        raise StoreError("gateways that share a store must be given their keys")

    def protect(self, in_use: Callable[[str], bool]) -> None:
        """Do nothing: this store has no limit of sessions, so it evicts none."""

    async def inspect(self) -> Sequence[Observation]:
        return await inspect(self.commands)

    async def open(self) -> None:
        """Check that the server accepts commands.

        A server that does not answer yet is no error: the gateway starts, and is not ready until the server answers.

        Raises:
            StoreError: the server answered and refused the command.
        """
        try:
            await self.ping()
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ServerError) and "LOADING" not in str(error):
                raise StoreError(f"Redis refused a command of the gateway: {error}") from None

    async def ping(self) -> None:
        await self.commands.run("PING")

    async def try_write(self) -> None:
        await self.commands.run("SET", keys.READY, b"1", "EX", 10)

    async def close(self) -> None:
        await self.bus.close()
        self.directory.close()
        await self.commands.close()


def _commands(url: str) -> Commands:
    """Return an object that runs commands on the server, the Sentinel service or the cluster of a URL.

    In addition to the URLs of redis-py: `redis+sentinel://[user:password@]host[:port][,host…]/service[/db]` and
    `redis+cluster://[user:password@]host[:port][,host…]`.
    """
    # No retries: a command whose reply was lost may have been executed.
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "mcp-session-gateway",
    }
    parts = urlsplit(url)
    if parts.scheme not in ("redis+sentinel", "redis+cluster", "rediss+cluster"):
        return Commands(Redis.from_url(url, **options))
    if parts.password:
        options |= {"username": unquote(parts.username or "") or None, "password": unquote(parts.password)}
    hosts = parts.netloc.rpartition("@")[2].split(",")
    default_port = 26_379 if parts.scheme == "redis+sentinel" else 6_379
    addresses = [(host.partition(":")[0], int(host.partition(":")[2] or default_port)) for host in hosts]
    if parts.scheme != "redis+sentinel":
        secure = parts.scheme == "rediss+cluster"
        return ClusterCommands(addresses, lambda at: Redis(host=at[0], port=at[1], ssl=secure, **options))
    service, _, db = parts.path.strip("/").partition("/")
    sentinel_options = {
        "socket_timeout": TIMEOUT_S / 2,
        "socket_connect_timeout": TIMEOUT_S / 2,
        "retry": Retry(NoBackoff(), 0),
    }
    sentinel = Sentinel(addresses, sentinel_kwargs=sentinel_options, **options)  # type: ignore[no-untyped-call]  # no hint
    return Commands(sentinel.master_for(service, db=int(db or 0)))
