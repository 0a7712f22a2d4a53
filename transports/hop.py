"""Requests between processes of ours, on TCP connections of their own: frames, signs of life, and nothing else.

A frame is a kind (one byte), a length (four, big endian) and a payload. The caller sends one `q`: the length of its
head (four bytes), head, body. What comes back is the handler's, but for `p`: it is at work. A connection carries one
request at a time, so a slow reader holds up nobody else; whoever closes it gives the request up. HTTP in its place cost
five times as much (docs/adr/0007-the-hop.md).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, cast

__all__ = ["Hop", "HopBroken", "HopPool", "HopRefused", "HopServer", "HopSilent", "Incoming"]

CONNECT_S: Final = 1.0
SIGN_OF_LIFE_S: Final = 0.5
"""How often the one who works on a request says so."""

SILENT_AFTER_S: Final = 1.5
"""When the one who waits begins to wonder."""

MAX_FRAME_BYTES: Final = 1 << 30
_MAX_UNREAD: Final = 1 << 20
_IDLE_S: Final = 30.0
_MAX_IDLE: Final = 256
_HEAD: Final = 5
_ALIVE: Final = b"p\x00\x00\x00\x00"


class HopRefused(Exception):
    """Nobody listens at that address."""


class HopSilent(Exception):
    """The other side has not been heard of for a while; it may still come."""


class HopBroken(Exception):
    """The connection ended before the answer did."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return kind + len(payload).to_bytes(4, "big") + payload


class _Wire(asyncio.Protocol):
    """Frames on one connection, in both directions."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._rest = bytearray()
        self._need = 0
        self._may_write: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data, self._rest = bytes(self._rest), bytearray()
        at, end, self._need = 0, len(data), _HEAD
        while end - at >= _HEAD:
            size = int.from_bytes(data[at + 1 : at + _HEAD], "big")
            if size > MAX_FRAME_BYTES:
                self.abort()
                return
            if end - at < _HEAD + size:
                self._need = _HEAD + size
                break
            self.heard(data[at : at + 1], data[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
        if at < end:
            self._rest += data[at:]

    def heard(self, kind: bytes, payload: bytes) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        self._may_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None

    async def write(self, data: bytes) -> None:
        """Returns when the other side reads fast enough for more; at once when it is gone."""
        if self.transport is None:
            return
        self.transport.write(data)
        if self._may_write is not None:
            await self._may_write

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.resume_writing()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


# -- who asks


class Hop(_Wire):
    """One connection of the asking side."""

    def __init__(self, pool: "HopPool", address: str) -> None:
        super().__init__()
        self._pool = pool
        self.address = address
        self.heard_at = 0.0
        self.idle_since = 0.0
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._unread = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None

    def ask(self, head: bytes, body: bytes) -> None:
        """Send the request."""
        self.heard_at = asyncio.get_running_loop().time()
        self._pool.watch(self)
        size = len(head).to_bytes(4, "big")
        if self.transport is not None:
            self.transport.write(b"".join((b"q", (4 + len(head) + len(body)).to_bytes(4, "big"), size, head, body)))

    def heard(self, kind: bytes, payload: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if kind == b"p":
            return
        self._frames.append((kind, payload))
        self._unread += len(payload)
        if self._unread > _MAX_UNREAD and not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    async def next(self) -> tuple[bytes, bytes]:
        """The next frame.

        Raises:
            HopSilent: none came, and no sign of life; it can be waited for again.
            HopBroken: none will come.
        """
        while not self._frames:
            if self.transport is None:
                raise HopBroken
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        kind, payload = self._frames.popleft()
        self._unread -= len(payload)
        if self._is_paused and self._unread <= _MAX_UNREAD // 2 and self.transport is not None:
            self._is_paused = False
            self.transport.resume_reading()
        return kind, payload

    def look(self, now: float) -> None:
        """Tell the reader when it has been silent for long. What waits to be read is no silence."""
        if now - self.heard_at >= SILENT_AFTER_S and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(HopSilent())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._pool.lost(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def done(self) -> None:
        """The answer is complete: the connection can serve the next request."""
        self._pool.keep(self)

    def close(self) -> None:
        """Give the request up."""
        self._pool.lost(self)
        self.abort()


class HopPool:
    """Connections to the other processes, by address."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Hop]] = {}
        self._active: set[Hop] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._is_closed = False

    async def open(self, address: str) -> Hop:
        """A connection to HOST:PORT.

        Raises:
            HopRefused: nobody is there.
            HopSilent: nobody says anything, not even no.
        """
        loop = asyncio.get_running_loop()
        idle = self._idle.get(address)
        while idle:
            hop = idle.pop()
            if hop.transport is not None and loop.time() - hop.idle_since < _IDLE_S:
                return hop
            hop.abort()
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, hop = await loop.create_connection(lambda: Hop(self, address), host.strip("[]"), int(port))
        except ConnectionRefusedError:
            raise HopRefused from None
        except (OSError, TimeoutError):
            raise HopSilent from None
        return hop

    def watch(self, hop: Hop) -> None:
        """Look for signs of life of it."""
        self._active.add(hop)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._looked_at = loop.time()
            self._timer = loop.call_later(SIGN_OF_LIFE_S, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        was_away = now - self._looked_at > 2 * SIGN_OF_LIFE_S
        self._looked_at = now
        self._timer = loop.call_later(SIGN_OF_LIFE_S, self._look) if self._active else None
        for hop in tuple(self._active):
            if was_away:
                hop.heard_at = now  # it was we who did not listen
            hop.look(now)

    def keep(self, hop: Hop) -> None:
        """It can be used again."""
        self._active.discard(hop)
        idle = self._idle.setdefault(hop.address, [])
        if hop.transport is None or self._is_closed or len(idle) >= _MAX_IDLE:
            hop.abort()
            return
        hop.idle_since = asyncio.get_running_loop().time()
        idle.append(hop)

    def lost(self, hop: Hop) -> None:
        """It cannot be used any more."""
        self._active.discard(hop)
        idle = self._idle.get(hop.address, [])
        if hop in idle:
            idle.remove(hop)
        if not idle:
            self._idle.pop(hop.address, None)

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for hop in [*self._active, *(hop for idle in self._idle.values() for hop in idle)]:
            hop.abort()


# -- who answers


class Incoming(_Wire):
    """One connection of the answering side: the request it carries, and what is sent back."""

    def __init__(self, server: "HopServer") -> None:
        super().__init__()
        self._server = server
        self._working: asyncio.Task[None] | None = None
        self._left: asyncio.Future[None] | None = None
        self.head = b""
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)

    def heard(self, kind: bytes, payload: bytes) -> None:
        if kind != b"q" or len(payload) < 4 or self._working is not None:
            self.abort()  # nobody of ours
            return
        size = int.from_bytes(payload[:4], "big")
        self.head, self.body = payload[4 : 4 + size], payload[4 + size :]
        self._server.active.add(self)
        self._working = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        try:
            await self._server.handler(self)
        except Exception:
            self._server.failed()
            self.abort()
        finally:
            self._working = None
            self._server.active.discard(self)

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame, and wait where the other side is slow. To one that has left nothing is sent."""
        await self.write(frame(kind, payload))

    def sign_of_life(self) -> None:
        """Say that it is being worked on; not to one that does not read."""
        if self.transport is not None and self._may_write is None:
            self.transport.write(_ALIVE)

    async def left(self) -> None:
        """Until the other side gives the request up."""
        if self.transport is None:
            return
        if self._left is None:
            self._left = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._left)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.connections.discard(self)
        if self._left is not None and not self._left.done():
            self._left.set_result(None)


class HopServer:
    """Listens for requests of other processes. `handler` answers one; what it raises is told to `failed`."""

    def __init__(self, handler: Callable[[Incoming], Awaitable[None]], failed: Callable[[], None]) -> None:
        self.handler = handler
        self.failed = failed
        self.connections: set[Incoming] = set()
        self.active: set[Incoming] = set()

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen inside the block; gives the port (0 takes a free one). Raises `OSError`: it cannot be had."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Incoming(self), host, port)
        signs = asyncio.create_task(self._signs_of_life())
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            signs.cancel()
            for connection in tuple(self.connections):
                connection.abort()
            await asyncio.sleep(0)  # a connection that is cut is closed with the loop's next turn

    async def _signs_of_life(self) -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            for connection in tuple(self.active):
                connection.sign_of_life()
