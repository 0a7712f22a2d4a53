"""Replica-to-replica request protocol, the side that asks: length-prefixed frames with heartbeats, all of them sealed.

A frame is a kind (one byte), a length (four bytes, big endian) and a payload. The asking side sends one frame `q`: the
length of its head (four bytes), the head, and the body. The answering side sends frames of the handler, and the frame
`p` as heartbeat: the request is in progress. A connection carries one request at a time, so a slow reader delays nobody
else, and closing the connection cancels the request. `replica_wire_server.py` is the side that answers, and
`sealed_wire.py` proves both sides and seals what they send.
docs/adr/0007-peer-connections.md has the reasons.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from transports.frames import FrameReader, FrameTooLong
from transports.sealed_wire import Asking, OtherKeys, OtherReplica, Sealed, Unproven

__all__ = [
    "CHECKED_S",
    "CONNECT_S",
    "HEAD_BYTES",
    "HEARD_S",
    "HEARTBEAT_S",
    "TIMED_OUT_AFTER_S",
    "PeerConnection",
    "PeerConnectionLost",
    "PeerConnectionPool",
    "PeerRefused",
    "PeerReplaced",
    "PeerTimedOut",
    "PeerTls",
    "PeerUnproven",
    "Wire",
    "frame",
]

CONNECT_S: Final = 1.0
HEARTBEAT_S: Final = 0.5
"""How often the answering side sends a heartbeat while it works on a request."""

TIMED_OUT_AFTER_S: Final = 1.0
"""After how many seconds without a frame the asking side counts a peer as timed out."""

MAX_FRAME_BYTES: Final = 1 << 30
CHECKED_S: Final = 0.25
"""How often the asking side looks for frames that are missing."""

_MAX_UNREAD: Final = 1 << 20
HEARD_S: Final = 1.0
"""After how many seconds without a sign of life nothing is sent to a peer before it has given one."""

_MAX_IDLE: Final = 256
HEAD_BYTES: Final = 5
"""Length of a frame's kind and size."""


class PeerRefused(Exception):
    """The address refuses connections."""


class PeerReplaced(PeerRefused):
    """Another replica has proved that it is at the address."""


class PeerTimedOut(Exception):
    """No frame has come for a while. One may still come."""


class PeerConnectionLost(Exception):
    """The connection ended before the answer did."""


_TLS: Final = "or only one of the two has gateway.peer_tls, or they have different authorities"


class PeerUnproven(PeerConnectionLost):
    """What accepts connections at the address has not proved that it is the replica: nothing was sent to it. The
    replica may be well, behind something that has dropped the connection.

    `why` is for operators.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return kind + len(payload).to_bytes(4, "big") + payload


class Wire(asyncio.Protocol):
    """One connection of either side: whether it is open, and when it can be written to."""

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
        """Send, and wait while the other side reads slowly. Returns at once when the connection is closed."""
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


class PeerTls(NamedTuple):
    """Encrypts connections between replicas, below their proofs and seals."""

    asking: ssl.SSLContext
    answering: ssl.SSLContext


# -- the asking side


_Place = tuple[str, str]
"""An address, and the replica that has proved to be there."""


class PeerConnection(Wire):
    """A connection of the asking side. It carries one request at a time.

    `last_frame_at` and `idle_since` (when the last request was done) are times of the event loop's clock.
    """

    may_have_run = True
    """What it has carried may have taken effect."""

    def __init__(self, pool: "PeerConnectionPool", place: _Place) -> None:
        super().__init__()
        self._pool = pool
        self.place = place
        self.last_frame_at = 0.0
        self.idle_since = 0.0
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._unread = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._reader = FrameReader(HEAD_BYTES, 1, MAX_FRAME_BYTES)

    def ask(self, head: bytes, body: bytes) -> None:
        """Send the request."""
        self.last_frame_at = asyncio.get_running_loop().time()
        self._pool.watch(self)
        size = len(head).to_bytes(4, "big")
        if self.transport is not None:
            self.transport.write(b"".join((b"q", (4 + len(head) + len(body)).to_bytes(4, "big"), size, head, body)))

    def data_received(self, data: bytes) -> None:
        try:
            for head, content in self._reader.feed(data):
                self._receive(head[:1], content)
        except FrameTooLong:
            self.abort()

    def _receive(self, kind: bytes, payload: bytes) -> None:
        """Handle a frame of the peer."""
        self.last_frame_at = asyncio.get_running_loop().time()
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
            PeerTimedOut: none came, no heartbeat either. It can be waited for again.
            PeerConnectionLost: none will come.
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

    @property
    def quiet_for_s(self) -> float:
        """Seconds since the last frame."""
        return asyncio.get_running_loop().time() - self.last_frame_at

    def restart_timeout(self, now: float) -> None:
        """Count the time without frames from now on."""
        self.last_frame_at = now

    def set_idle(self) -> None:
        """Record that no request uses the connection from now on."""
        self.idle_since = asyncio.get_running_loop().time()

    def check_timeout(self, now: float) -> None:
        """Raise `PeerTimedOut` in the reader if no frame has come for too long. A reader that has frames to read does
        not wait, and so does not time out."""
        if now - self.last_frame_at >= TIMED_OUT_AFTER_S and self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(PeerTimedOut())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._pool.lost(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def done(self) -> None:
        """Give the connection back to the pool: the answer is complete."""
        self._pool.keep(self)

    def close(self) -> None:
        """Cancel the request."""
        self._pool.lost(self)
        self.abort()

    def hand_over(self) -> asyncio.Transport | None:
        """Leave the connection to another protocol. None: it is closed."""
        self._pool.lost(self)
        transport, self.transport = self.transport, None
        return transport


class PeerConnectionPool:
    """Open connections to peers, by address and replica. `keys` prove that a process is a replica, newest first."""

    def __init__(self, keys: Sequence[bytes], tls: PeerTls | None = None) -> None:
        self._keys = keys
        self._tls = None if tls is None else tls.asking
        self._idle: dict[_Place, list[PeerConnection]] = {}
        self._active: set[PeerConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0
        self._is_closed = False

    async def open(self, address: str, replica: str) -> PeerConnection:
        """A connection to HOST:PORT, where that replica has proved that it is there. Nothing was sent to it yet.

        Raises:
            PeerRefused: the connection was refused.
            PeerReplaced: another replica is there.
            PeerUnproven: what listens there has not proved that it is the replica, or has closed the connection.
            PeerTimedOut: the peer neither accepts nor refuses the connection, or proves nothing.
        """
        loop = asyncio.get_running_loop()
        place = (address, replica)
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            if connection.transport is not None and loop.time() - connection.idle_since < HEARD_S:
                return connection
            connection.abort()
        host, _, port = address.rpartition(":")
        connection = PeerConnection(self, place)
        sealed = Sealed(connection, Asking(self._keys, replica))
        try:
            async with asyncio.timeout(CONNECT_S):
                # No name is sent: certificates name no replica.
                name = None if self._tls is None else ""
                await loop.create_connection(
                    lambda: sealed, host.strip("[]"), int(port), ssl=self._tls, server_hostname=name
                )
                await sealed.proved()
        except ConnectionRefusedError:
            raise PeerRefused from None
        except OtherReplica:
            raise PeerReplaced from None
        except OtherKeys:
            raise PeerUnproven("the gateway at that address has other keys") from None
        except Unproven:
            raise PeerUnproven(f"what answers at that address is not a gateway of this version, {_TLS}") from None
        except (ssl.SSLError, ConnectionError) as error:
            raise PeerUnproven(
                f"what accepts connections at that address ends them ({str(error) or type(error).__name__}), {_TLS}"
            ) from None
        except (OSError, TimeoutError):
            raise PeerTimedOut from None
        finally:
            if not sealed.is_proved:
                connection.abort()
        return connection

    def watch(self, connection: PeerConnection) -> None:
        """Check the connection for heartbeats until it is given back."""
        self._active.add(connection)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._checked_at = loop.time()
            self._timer = loop.call_later(CHECKED_S, self._check_timeouts)

    def _check_timeouts(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        was_away = now - self._checked_at > 4 * CHECKED_S
        self._checked_at = now
        self._timer = loop.call_later(CHECKED_S, self._check_timeouts) if self._active else None
        for connection in tuple(self._active):
            if was_away:
                connection.restart_timeout(now)  # this process was suspended: heartbeats were sent and not read
            connection.check_timeout(now)

    def keep(self, connection: PeerConnection) -> None:
        """Put a connection back into the pool, for the next request."""
        self._active.discard(connection)
        idle = self._idle.setdefault(connection.place, [])
        if connection.transport is None or self._is_closed or len(idle) >= _MAX_IDLE:
            connection.abort()
            return
        connection.set_idle()
        idle.append(connection)

    def lost(self, connection: PeerConnection) -> None:
        """Forget a connection that is closed."""
        self._active.discard(connection)
        idle = self._idle.get(connection.place, [])
        if connection in idle:
            idle.remove(connection)
        if not idle:
            self._idle.pop(connection.place, None)

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in [*self._active, *(connection for idle in self._idle.values() for connection in idle)]:
            connection.abort()
