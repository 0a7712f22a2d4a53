"""Replica-to-replica request protocol, the side that asks: length-prefixed frames with heartbeats.

A frame is a kind (one byte), a length (four bytes, big endian) and a payload. The asking side sends one frame `q`: the
length of its head (four bytes), the head, and the body. The answering side sends frames of the handler, and the frame
`p` as heartbeat: the request is in progress. A connection carries one request at a time, so a slow reader delays nobody
else, and closing the connection cancels the request. `replica_wire_server.py` is the side that answers.
docs/adr/0007-peer-connections.md has the reasons.
"""

import asyncio
from collections import deque
from typing import Final, cast

__all__ = [
    "HEAD_BYTES",
    "SIGN_OF_LIFE_S",
    "PeerConnection",
    "PeerConnectionLost",
    "PeerConnectionPool",
    "PeerRefused",
    "PeerTimedOut",
    "Wire",
    "frame",
]

CONNECT_S: Final = 1.0
SIGN_OF_LIFE_S: Final = 0.5
"""How often the one who works on a request says so."""

SILENT_AFTER_S: Final = 1.5
"""When the one who waits begins to wonder."""

MAX_FRAME_BYTES: Final = 1 << 30
_MAX_UNREAD: Final = 1 << 20
_IDLE_S: Final = 30.0
_MAX_IDLE: Final = 256
HEAD_BYTES: Final = 5
"""Of a frame: its kind, and the length of the rest."""


class PeerRefused(Exception):
    """Nobody listens at that address."""


class PeerTimedOut(Exception):
    """The other side has not been heard of for a while; it may still come."""


class PeerConnectionLost(Exception):
    """The connection ended before the answer did."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return kind + len(payload).to_bytes(4, "big") + payload


class Wire(asyncio.Protocol):
    """One connection: its end, and how fast it is written to."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._may_write: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

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


class PeerConnection(Wire):
    """One connection of the asking side."""

    def __init__(self, pool: "PeerConnectionPool", address: str) -> None:
        super().__init__()
        self._pool = pool
        self.address = address
        self.heard_at = 0.0
        self.idle_since = 0.0
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._unread = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._rest = bytearray()
        self._need = 0

    def ask(self, head: bytes, body: bytes) -> None:
        """Send the request."""
        self.heard_at = asyncio.get_running_loop().time()
        self._pool.watch(self)
        size = len(head).to_bytes(4, "big")
        if self.transport is not None:
            self.transport.write(b"".join((b"q", (4 + len(head) + len(body)).to_bytes(4, "big"), size, head, body)))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data, self._rest = bytes(self._rest), bytearray()
        at, end, self._need = 0, len(data), HEAD_BYTES
        while end - at >= HEAD_BYTES:
            size = int.from_bytes(data[at + 1 : at + HEAD_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                self.abort()
                return
            if end - at < HEAD_BYTES + size:
                self._need = HEAD_BYTES + size
                break
            self.heard(data[at : at + 1], data[at + HEAD_BYTES : at + HEAD_BYTES + size])
            at += HEAD_BYTES + size
        if at < end:
            self._rest += data[at:]

    def heard(self, kind: bytes, payload: bytes) -> None:
        """A frame has come."""
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
                raise PeerConnectionLost
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
            self._waiter.set_exception(PeerTimedOut())

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


class PeerConnectionPool:
    """Connections to the other processes, by address."""

    def __init__(self) -> None:
        self._idle: dict[str, list[PeerConnection]] = {}
        self._active: set[PeerConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._is_closed = False

    async def open(self, address: str) -> PeerConnection:
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
                _, hop = await loop.create_connection(
                    lambda: PeerConnection(self, address), host.strip("[]"), int(port)
                )
        except ConnectionRefusedError:
            raise PeerRefused from None
        except (OSError, TimeoutError):
            raise PeerTimedOut from None
        return hop

    def watch(self, hop: PeerConnection) -> None:
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

    def keep(self, hop: PeerConnection) -> None:
        """It can be used again."""
        self._active.discard(hop)
        idle = self._idle.setdefault(hop.address, [])
        if hop.transport is None or self._is_closed or len(idle) >= _MAX_IDLE:
            hop.abort()
            return
        hop.idle_since = asyncio.get_running_loop().time()
        idle.append(hop)

    def lost(self, hop: PeerConnection) -> None:
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
