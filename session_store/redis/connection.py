"""One connection to one Redis server, over which the commands of all requests are pipelined.

redis-py handles URLs, TLS, credentials and rare commands. Its own round trip costs ten times as much as this one
(docs/adr/0004-redis.md).
"""

import asyncio
from collections import deque
from typing import Any, Final, cast

import hiredis
from redis.asyncio import Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import RedisError

from session_store.ports.errors import StoreUnavailable
from session_store.redis.shared_run import SharedRun

__all__ = ["TIMEOUT_S", "Connection", "ServerError"]

TIMEOUT_S: Final = 1.0
_TICK_S: Final = 0.25


class ServerError(Exception):
    """Redis answered with an error."""


class Connection:
    """Connects when it is first needed and again when it was lost; commands that were on their way then have failed.

    Whether they took effect is not known, so nothing is ever sent twice.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._connecting = SharedRun(self._connect)
        self._wire: _Wire | None = None
        self._greeting: list[bytes] = []
        self._greeted: list[asyncio.Future[Any]] = []
        self._unsent: list[bytes] = []
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        self._answered = 0
        self._watched = 0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """The reply to come to a command in RESP, over a connection that is open.

        It fails with `StoreUnavailable`; `ServerError` is the cause when Redis refused the command.
        """
        loop = asyncio.get_running_loop()
        if not self._unsent:
            # What is asked for in this turn of the loop goes out in one write.
            loop.call_soon(self._flush)
        self._unsent.append(packed)
        reply: asyncio.Future[Any] = loop.create_future()
        self._unanswered.append(reply)
        if self._watch is None:
            self._watched = self._answered + len(self._unanswered)
            self._watch = loop.call_later(_TICK_S, self._look, loop.time())
        return reply

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    # -- connecting

    async def open(self) -> None:
        """Be connected. Concurrent callers share one attempt. Raises `StoreUnavailable`."""
        await self._connecting.done()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                how: Any = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # no hint
                self._greeting = [hiredis.pack_command(command) for command in _greeting(how)]
                loop = asyncio.get_running_loop()
                if isinstance(how, UnixDomainSocketConnection):
                    await loop.create_unix_connection(lambda: _Wire(self), how.path)
                else:
                    tls = how.ssl_context.get() if isinstance(how, SSLConnection) else None
                    host, port = await self._address(how)
                    await loop.create_connection(lambda: _Wire(self), host, port, ssl=tls)
                await asyncio.gather(*self._greeted)
        except StoreUnavailable:
            self._fail("Redis refused the connection or the credentials")
            raise
        except (OSError, TimeoutError, RedisError) as error:
            self._fail(f"Redis cannot be reached: {type(error).__name__}")
            raise StoreUnavailable(f"Redis cannot be reached: {type(error).__name__}") from error

    async def _address(self, how: Any) -> tuple[str, int]:
        """Where the server is; with Sentinel, where the master is now."""
        pool = self._client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            host, port = await pool.get_master_address()  # type: ignore[no-untyped-call]  # no hint
            return str(host), int(port)
        return how.host, how.port

    # -- what the wire brings

    def opened(self, wire: "_Wire", transport: asyncio.Transport) -> None:
        """There is a connection."""
        self._wire = wire
        self._transport = transport
        # At once, so that no command of others can come before it.
        self._greeted = [self.send(packed) for packed in self._greeting]

    def replied(self, reply: Any) -> None:
        """The oldest command that waits has its reply."""
        self._answered += 1
        waiting = self._unanswered.popleft()
        if waiting.done():
            return
        if isinstance(reply, hiredis.ReplyError):
            waiting.set_exception(_refused(reply))
            if str(reply).startswith("READONLY"):  # it was the master; the next command finds the one that is
                self._fail("Redis has failed over to another server")
        else:
            waiting.set_result(reply)

    def broken(self, wire: "_Wire", reason: str) -> None:
        """That connection is gone; it may be one that was given up before."""
        if wire is self._wire:
            self._fail(reason)

    # -- failing

    def _look(self, since: float) -> None:
        """Whether everything that was on its way a second ago has been answered."""
        self._watch = None
        if not self._unanswered:
            return
        loop = asyncio.get_running_loop()
        if self._answered >= self._watched:
            self._watched = self._answered + len(self._unanswered)
            since = loop.time()
        if loop.time() - since >= TIMEOUT_S:
            self._fail(f"Redis did not answer within {TIMEOUT_S:g} s")
        else:
            self._watch = loop.call_later(_TICK_S, self._look, since)

    def _fail(self, reason: str) -> None:
        transport, self._transport, self._wire = self._transport, None, None
        if transport is not None:
            transport.abort()
        self._unsent.clear()
        failed, self._unanswered = self._unanswered, deque()
        self._answered += len(failed)
        for reply in failed:
            if not reply.done():
                reply.set_exception(StoreUnavailable(reason))

    def close(self) -> None:
        """Let go of the server."""
        self._connecting.cancel()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._fail("the store is closed")


class _Wire(asyncio.Protocol):
    """One connection. A new connection has a new object, so that the end of an old one is not mistaken for its end."""

    def __init__(self, owner: Connection) -> None:
        self._owner = owner
        self._reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.opened(self, cast("asyncio.Transport", transport))  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._owner.replied(reply)
        except (hiredis.ProtocolError, IndexError):
            self._owner.broken(self, "Redis sent bytes that are not a reply")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.broken(self, "the connection to Redis was lost")


def _greeting(how: Any) -> list[tuple[Any, ...]]:
    """The first commands on a connection: credentials, and the database."""
    provider = how.credential_provider
    credentials = provider.get_credentials() if provider else tuple(filter(None, (how.username, how.password)))
    commands: list[tuple[Any, ...]] = [("AUTH", *credentials)] if credentials else []
    if how.db:
        commands.append(("SELECT", how.db))
    return [*commands, ("CLIENT", "SETNAME", "mcp-session-gateway")]


def _refused(reply: Exception) -> StoreUnavailable:
    error = StoreUnavailable(f"Redis: {str(reply)[:200]}")
    error.__cause__ = ServerError(str(reply))
    return error
