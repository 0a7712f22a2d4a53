"""Pipeline the commands of all requests over one connection to one Redis server.

redis-py handles URLs, TLS, credentials and rare commands. A round trip with redis-py costs ten times as much as with
this module (docs/adr/0004-redis.md).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, cast

import hiredis
from redis.asyncio import Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import RedisError

from session_store.ports.errors import StoreUnavailable


class SharedRun:
    """Run `work` in a task that concurrent callers share, instead of one for each. A cancelled caller does not cancel
    the task."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._running: asyncio.Task[None] | None = None

    async def done(self) -> None:
        """Wait until the current task has ended; if none runs, start one. Raises the exception of the task."""
        await asyncio.shield(self.start())

    def start(self) -> asyncio.Task[None]:
        """Return the current task; if there is none, start one. Its exceptions are not logged."""
        if self._running is None:
            self._running = asyncio.create_task(self._work())
            self._running.add_done_callback(self._ended)
        return self._running

    def cancel(self) -> None:
        """Cancel the current task, if there is one. Its callers get `CancelledError`."""
        if self._running is not None:
            self._running.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: every caller may have left


TIMEOUT_S: Final = 1.0
_TICK_S: Final = 0.25
_LASTING_S: Final = 1.0
"""Seconds that a connection must have lasted to be replaced at once when it ends. A shorter one is not, because a proxy
may accept and end each new connection."""


def encoded(*command: Any) -> bytes:
    """Return a command encoded in RESP, the protocol of Redis."""
    return bytes(hiredis.pack_command(command))


class ServerError(Exception):
    """Redis answered with an error."""


class Connection:
    """Send commands over a connection that is opened when needed, again after it was lost. A loss fails the commands in
    flight.

    It is unknown whether those commands took effect, so no command is ever sent twice. The failure of a command that
    was not sent, or that Redis refused before executing it, says so (`StoreError.may_have_taken_effect`). `connected`:
    called each time the server behind a new connection has accepted the greeting, before the first command is sent.
    """

    def __init__(self, client: Redis, connected: Iterable[Callable[[], None]] = ()) -> None:
        self._client = client
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._connecting = SharedRun(self._connect)
        self._wire: _Wire | None = None
        self._greeted_at = 0.0
        self._unsent: list[bytes] = []
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        self._answered = 0
        self._due = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send an encoded command (RESP) over the open connection. Return the future of its reply.

        The future fails with `StoreUnavailable`. The cause is `ServerError` if Redis refused the command.
        """
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        if self._transport is None:
            # It was lost after it had opened for this caller. A future that waits here without its command would take
            # the first reply on the next connection, and each reply there would go to the wrong command.
            reply.set_exception(StoreUnavailable("the connection to Redis was lost", may_have_taken_effect=False))
            return reply
        if not self._unsent:
            # All commands of one iteration of the event loop go out in one write.
            loop.call_soon(self._flush)
        self._unsent.append(packed)
        self._unanswered.append(reply)
        if self._timer is None:
            self._due = self._answered + len(self._unanswered)
            self._timer = loop.call_later(_TICK_S, self._check_timeout, loop.time())
        return reply

    async def reply_to(self, packed: bytes) -> Any:
        """Send an encoded command (RESP), and return its reply. Connect first if needed. Raises `StoreUnavailable`."""
        if not self.is_open:
            await self.open()
        return await self.send(packed)

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    # -- connecting

    async def open(self) -> None:
        """Connect. Concurrent callers share one attempt. Raises `StoreUnavailable`."""
        await self._connecting.done()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                settings: Any = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # no hint
                loop = asyncio.get_running_loop()
                if isinstance(settings, UnixDomainSocketConnection):
                    opening = loop.create_unix_connection(lambda: _Wire(self), settings.path)
                else:
                    tls = settings.ssl_context.get() if isinstance(settings, SSLConnection) else None
                    host, port = await self._address(settings)
                    opening = loop.create_connection(lambda: _Wire(self), host, port, ssl=tls)
                _, wire = await opening
                await self._greet(wire, [encoded(*command) for command in _greeting(settings)])
        except asyncio.CancelledError:
            self._fail("the store is closed")  # the connection may have opened since `close`
            raise
        except StoreUnavailable as error:
            self._fail("Redis refused the connection or the credentials")
            error.changed_nothing()  # the callers' commands follow the greeting, which has failed
            raise
        except (OSError, TimeoutError, RedisError) as error:
            self._fail(f"Redis cannot be reached: {type(error).__name__}")
            text = f"Redis cannot be reached: {type(error).__name__}"
            raise StoreUnavailable(text, may_have_taken_effect=False) from error

    async def _address(self, settings: Any) -> tuple[str, int]:
        """Return the address of the server; with Sentinel, that of the current master."""
        pool = self._client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            host, port = await pool.get_master_address()  # type: ignore[no-untyped-call]  # no hint
            return str(host), int(port)
        return settings.host, settings.port

    async def _greet(self, wire: "_Wire", greeting: Sequence[bytes]) -> None:
        """Send the first commands (credentials, database) over the new connection. Open it for other commands when all
        of these have succeeded: until then, they would run as another user, or on another database. Raises
        `StoreUnavailable`."""
        if wire is self._wire:
            replies: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in greeting]
            self._unanswered.extend(replies)
            wire.transport.write(b"".join(greeting))
            await asyncio.gather(*replies)
        if wire is not self._wire:
            raise StoreUnavailable("the connection to Redis was lost")
        self._transport = wire.transport
        self._greeted_at = asyncio.get_running_loop().time()
        for callback in self._connected:
            callback()

    # -- events of the wire

    def opened(self, wire: "_Wire") -> None:
        self._wire = wire

    def replied(self, wire: "_Wire", reply: Any) -> None:
        """Complete the oldest unanswered command with its reply. Do nothing if `wire` is not the current connection."""
        if wire is not self._wire:
            return
        self._answered += 1
        waiting = self._unanswered.popleft()
        if waiting.done():
            return
        if isinstance(reply, hiredis.ReplyError):
            waiting.set_exception(_refused(reply))
            if str(reply).startswith("READONLY"):  # it is not the master: the next command connects to the new one
                self._fail("Redis has failed over to another server")
        else:
            waiting.set_result(reply)

    def broken(self, wire: "_Wire", reason: str) -> None:
        """Fail all commands in flight for `reason`, because the connection of `wire` has ended. Then connect again at
        once, because the server may have failed over; but not if the connection was new. Do nothing if `wire` is not
        the current connection."""
        if wire is self._wire:
            self._fail(reason)
            if asyncio.get_running_loop().time() - self._greeted_at >= _LASTING_S:
                self._connecting.start()

    # -- failing

    def _check_timeout(self, since: float) -> None:
        """Fail the connection if commands that were in flight at the time `since` are still unanswered after
        `TIMEOUT_S`. Otherwise set the timer again that calls this, as long as commands are in flight."""
        self._timer = None
        if not self._unanswered:
            return
        loop = asyncio.get_running_loop()
        if self._answered >= self._due:
            self._due = self._answered + len(self._unanswered)
            since = loop.time()
        if loop.time() - since >= TIMEOUT_S:
            self._fail(f"Redis did not answer within {TIMEOUT_S:g} s")
        else:
            self._timer = loop.call_later(_TICK_S, self._check_timeout, since)

    def _fail(self, reason: str) -> None:
        wire, self._wire, self._transport = self._wire, None, None
        if wire is not None:
            wire.transport.abort()
        failed, self._unanswered = self._unanswered, deque()
        self._answered += len(failed)
        written = len(failed) - len(self._unsent)
        self._unsent.clear()
        for number, reply in enumerate(failed):
            if not reply.done():
                reply.set_exception(StoreUnavailable(reason, may_have_taken_effect=number < written))

    def close(self) -> None:
        self._connecting.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail("the store is closed")


class _Wire(asyncio.Protocol):
    """Report the events of one connection to its owner. Each connection has its own object, so that late events of an
    old connection are not mistaken for those of the new one."""

    def __init__(self, owner: Connection) -> None:
        self._owner = owner
        self._reader = hiredis.Reader()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the methods, not the base class
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._owner.replied(self, reply)
        except (hiredis.ProtocolError, IndexError):
            self._owner.broken(self, "Redis sent bytes that are not a reply")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.broken(self, "the connection to Redis was lost")


def _greeting(settings: Any) -> list[tuple[Any, ...]]:
    """Return the first commands for a new connection: they send the credentials and select the database. A server that
    is loading its data refuses only the last of them."""
    provider = settings.credential_provider
    credentials = (
        provider.get_credentials() if provider else tuple(filter(None, (settings.username, settings.password)))
    )
    commands: list[tuple[Any, ...]] = [("AUTH", *credentials)] if credentials else []
    if settings.db:
        commands.append(("SELECT", settings.db))
    return [*commands, ("CLIENT", "SETNAME", "mcp-session-gateway"), ("PING",)]


NOT_EXECUTED: Final = frozenset(
    "BUSY CLUSTERDOWN LOADING MASTERDOWN MISCONF NOAUTH NOREPLICAS NOSCRIPT OOM READONLY TRYAGAIN".split()
)
"""Codes of errors with which Redis refuses a command, or the first write of a script. Other errors, as of a proxy or of
a script that has begun to write, do not say that nothing was changed."""


def _refused(reply: Exception) -> StoreUnavailable:
    code = str(reply).partition(" ")[0]
    error = StoreUnavailable(f"Redis: {str(reply)[:200]}", may_have_taken_effect=code not in NOT_EXECUTED)
    error.__cause__ = ServerError(str(reply))
    return error
