"""The server side of the replica protocol. Limits what a sender may cost until it has proved that it is a replica.

The head of a request is small, must arrive within seconds, and authenticates the sender. The body is read only after
that. This module does not know what a valid head is: `opening` decides.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transports.encrypted_wire import Encrypted
from transports.peer_channel_server import AnsweringChannel, Rules
from transports.replica_wire import HEAD_BYTES, HEARTBEAT_S, PeerTls, Wire, frame
from transports.sealed_wire import Answering, Sealed
from transports.tasks import Tasks

__all__ = ["Incoming", "PeerBounds", "PeerServer", "PeerUnknown"]

HEAD_WITHIN_S: Final = 5.0
"""From a connection's start to the end of its first head."""

BODY_WITHIN_S: Final = 30.0
"""From the valid head to the end of the body. Replicas are in one network."""

IDLE_S: Final = 60.0
"""Longer than the asking side uses an idle connection."""

MOST_UNKNOWN: Final = 256
"""Connections that have not sent a valid head yet. Beyond, the oldest is cut: of the peer that has more than half of
them, if there is one. Replicas send theirs within a millisecond."""

_SIZE: Final = 4
_PREFIX: Final = HEAD_BYTES + _SIZE
_ALIVE: Final = b"p\x00\x00\x00\x00"
_LAST: Final = (b"e", b"m", b"r")
"""The frames that end an answer."""


class PeerUnknown(Exception):
    """The head was not sealed by a replica of this store, or is for another process. `answer` is sent back."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer.decode())
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBounds:
    """The most bytes of a request's head and body."""

    head_bytes: int = 128 << 10
    body_bytes: int = 64 << 20


class Incoming(Wire):
    """One connection: its request, and the frames of the answer. `opened` is what `opening` returned for the head."""

    def __init__(self, server: "PeerServer") -> None:
        super().__init__()
        self._server = server
        self._working: asyncio.Task[None] | None = None
        self._left: asyncio.Future[None] | None = None
        self._rest = bytearray()
        self._is_refused = False
        self._has_ended = False
        self.is_known = False
        self.since = 0.0
        self.peer = ""
        self.opened: Any = None
        self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self in self._server.connections:
            return  # it counts since before its handshake of TLS
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else ""
        self.since = asyncio.get_running_loop().time()
        self._server.entered(self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # the refusal has been sent, and the sender closes the connection
        self._rest += data
        if self._working is None:
            self._read_request()
        elif not self._has_ended:
            self._cut()  # a connection carries one request at a time
        elif self.transport is not None:
            self.transport.pause_reading()  # the sender has its answer already, and the handler is about to end

    def _read_request(self) -> None:
        """Read the request, as far as it has arrived."""
        if len(self._rest) < _PREFIX:
            return
        size = int.from_bytes(self._rest[1:HEAD_BYTES], "big")
        head_size = int.from_bytes(self._rest[HEAD_BYTES:_PREFIX], "big")
        bounds = self._server.bounds
        body_size = size - _SIZE - head_size
        if self._rest[:1] != b"q" or head_size > bounds.head_bytes or not 0 <= body_size <= bounds.body_bytes:
            self._cut()
            return
        ends = _PREFIX + head_size
        if self.opened is None and len(self._rest) >= ends and not self._open(bytes(self._rest[_PREFIX:ends])):
            return
        if len(self._rest) < HEAD_BYTES + size:
            return
        if len(self._rest) > HEAD_BYTES + size:
            self._cut()
            return
        self.body, self._rest = bytes(self._rest[ends:]), bytearray()
        self._server.active.add(self)
        # A bare task: `_work` reports what fails, and `active` keeps the connection and with it the task.
        self._working = asyncio.ensure_future(self._work())

    def _open(self, head: bytes) -> bool:
        """True if the head is valid. Else refuse the request."""
        try:
            self.opened = self._server.opening(head)
        except PeerUnknown as unknown:
            self._server.refused()
            self._is_refused = True
            self._rest = bytearray()
            if self.transport is not None:
                self.transport.write(frame(b"r", unknown.answer))
            return False
        self.is_known = True
        self.since = asyncio.get_running_loop().time()
        self._server.known(self)
        return True

    def _cut(self) -> None:
        self._server.refused()
        self.abort()

    async def _work(self) -> None:
        self._has_ended = False
        try:
            await self._server.handler(self)
            if not self._has_ended:
                self.abort()  # nobody else will end the answer, and the other side must not wait for its end
        except Exception:
            self._server.failed()
            self.abort()
        finally:
            self._working = self.opened = None
            self.body = b""
            self.since = asyncio.get_running_loop().time()
            self._server.active.discard(self)
            if self._rest and self.transport is not None:
                self.transport.resume_reading()
                self._read_request()

    def check_deadline(self, now: float) -> None:
        """Close the connection if its request takes too long to arrive, or none comes."""
        if self._working is not None:
            return
        if self.opened is not None:
            allowed = BODY_WITHIN_S
        elif self.is_known and not self._rest and not self._is_refused:
            allowed = IDLE_S
        else:
            allowed = HEAD_WITHIN_S
        if now - self.since >= allowed:
            if allowed != IDLE_S:
                self._server.refused()
            self.abort()

    @property
    def held_bytes(self) -> int:
        """Bytes of a request that has not arrived completely."""
        return len(self._rest)

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame, and wait while the other side reads slowly. Does nothing on a closed connection."""
        self._has_ended = self._has_ended or kind in _LAST
        await self.write(frame(kind, payload))

    def heartbeat(self) -> None:
        """Send a heartbeat, unless the other side reads slowly."""
        if self.transport is not None and self._may_write is None:
            self.transport.write(_ALIVE)

    def become_channel(self, name: str, rules: Rules) -> None:
        """Serve the connection as a channel, after the request that it works on."""
        transport, self.transport = self.transport, None
        self._server.gone(self)
        if transport is not None:
            self._server.channels.add(AnsweringChannel(transport, name, rules, self._server.channels.discard))

    async def left(self) -> None:
        """Wait until the other side cancels the request."""
        if self.transport is None:
            return
        if self._left is None:
            self._left = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._left)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest = bytearray()
        self._server.gone(self)
        if self._left is not None and not self._left.done():
            self._left.set_result(None)


class PeerServer:
    """Listens for requests of other processes.

    `own` has the keys that prove this replica, newest first, and its name. `opening` reads the head of a request, or
    raises `PeerUnknown`. `handler` answers the request. `failed` is called when the handler raises, and `refused` for
    each connection or request that is refused.
    """

    def __init__(
        self,
        handler: Callable[[Incoming], Awaitable[None]],
        failed: Callable[[], None],
        *,
        own: tuple[Sequence[bytes], str],
        tls: PeerTls | None = None,
        opening: Callable[[bytes], Any],
        refused: Callable[[], None] = lambda: None,
        bounds: PeerBounds | None = None,
    ) -> None:
        self.handler = handler
        self.failed = failed
        self._own = own
        self._tls = None if tls is None else tls.answering
        self.opening = opening
        self.refused = refused
        self.bounds = bounds or PeerBounds()
        self.active: set[Incoming] = set()
        self.connections: set[Incoming] = set()
        self.channels: set[AnsweringChannel] = set()
        self._unknown: dict[Incoming, None] = {}  # in the order they came
        self._peers: Counter[str] = Counter()

    def entered(self, connection: Incoming) -> None:
        """Register a new connection, whose sender is not known yet."""
        self.connections.add(connection)
        self._unknown[connection] = None
        self._peers[connection.peer] += 1
        if len(self._unknown) > MOST_UNKNOWN:
            [(peer, number)] = self._peers.most_common(1)
            crowd = (c for c in self._unknown if number <= MOST_UNKNOWN // 2 or c.peer == peer)
            self.refused()
            oldest = next(crowd)
            self.known(oldest)
            oldest.abort()

    def known(self, connection: Incoming) -> None:
        """Stop counting a connection as unknown: its head is valid, or it is being closed."""
        if connection in self._unknown:
            del self._unknown[connection]
            self._peers[connection.peer] -= 1
            if not self._peers[connection.peer]:
                del self._peers[connection.peer]

    def gone(self, connection: Incoming) -> None:
        """Forget a connection that is closed."""
        self.known(connection)
        self.connections.discard(connection)

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen inside the block. Gives the port (0 takes a free one). Raises `OSError` if the port cannot be used."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._accept, host, port)
        heartbeats = Tasks("listener for peers")
        heartbeats.spawn(self._heartbeats())
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for connection in tuple(self.connections):
                connection.abort()
            for channel in tuple(self.channels):
                channel.close()
            await heartbeats.close()
            await asyncio.sleep(0)  # an aborted connection is closed in the next iteration of the event loop

    def _accept(self) -> asyncio.Protocol:
        incoming = Incoming(self)
        sealed = Sealed(incoming, Answering(*self._own), self.refused)
        if self._tls is None:
            return sealed
        return Encrypted(sealed, self._tls, accepted=incoming.connection_made, failed=self.refused)

    async def _heartbeats(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for connection in tuple(self.active):
                connection.heartbeat()
            for channel in tuple(self.channels):
                channel.heartbeat()
            now = loop.time()
            for connection in tuple(self.connections):
                connection.check_deadline(now)
