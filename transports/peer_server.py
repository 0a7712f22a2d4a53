"""Listen for other replicas (peers), and answer their calls. `peer_frames.py` has the frames.

Strangers cost little: until its sender has proved that it is a replica, a connection holds only a challenge, for some
seconds, and the number of such connections is limited. The answers of one turn of the event loop are one write.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from transports.background_tasks import Tasks
from transports.peer_authentication import Answering, Sealed
from transports.peer_frames import (
    CALL,
    CREDIT_BYTES,
    FRAME,
    HEARTBEAT_S,
    KEPT,
    MAX_CALLS,
    MAX_DEFINITION_BYTES,
    MAX_HEAD_BYTES,
    NUMBER,
    PIECE_BYTES,
    SMALL_BYTES,
    UNKEPT,
    Batch,
    LogLimit,
    PeerFault,
    credit_after,
    frame,
)
from transports.peer_tls import Encrypted, PeerTls
from transports.sized_frames import FrameReader, FrameTooLong

logger = logging.getLogger(__name__)

PROVED_WITHIN_S: Final = 5.0
"""Seconds in which a new connection has to prove that it is a replica's."""

BODY_WITHIN_S: Final = 30.0
"""Seconds in which the next piece of a body has to come. Replicas are in one network."""

IDLE_S: Final = 60.0
"""Seconds after which a silent channel is closed. The asking side sends a ping far sooner."""

MOST_UNKNOWN: Final = 256
"""Maximum number of connections that have not proved to be a replica's. Beyond this, one is closed: the oldest of the
address that has more than half of them, if there is one, else the oldest of all. Replicas prove themselves within a
millisecond."""


_ALIVE: Final = frame(b"p")


class CallLeft(Exception):
    """The asking side has cancelled the call, or its connection has ended, so that nobody waits for an answer."""


class Rules(NamedTuple):
    """The callbacks of a `PeerServer`, which its owner provides."""

    define: Callable[[bytes], Any]
    """Reads a definition (facts that calls share), and returns what `PeerIncomingCall.definition` will be. May raise
    only `PeerFault`."""
    begin: Callable[["PeerIncomingCall"], None]
    """Begins to serve a call. May raise only `PeerFault`."""
    cut: Callable[[], None]
    """Called for each connection that is closed because it breaks a rule, proves nothing in time, or is one of too many
    that have proved nothing yet."""


class PeerIncomingCall:
    """Receive one call, and send its answer. `definition` is the result of `Rules.define` for the facts that the call
    shares with others, and `facts` are those of this call alone. `body` is the first part of the call's body; more
    parts follow if the body `goes_on`."""

    __slots__ = (
        *("_changed", "_channel", "_credit", "_is_agreed", "_left", "_pieces", "_unread"),
        *("body", "definition", "facts", "goes_on", "number"),
    )

    def __init__(
        self, channel: "AnsweringChannel", number: int, *, definition: Any, facts: bytes, body: bytes, goes_on: bool
    ) -> None:
        self._channel = channel
        self.number = number
        self.definition = definition
        self.facts = facts
        self.body = body
        self.goes_on = goes_on
        self._pieces: deque[bytes] = deque((body,))
        self._unread = len(body)
        self._credit = CREDIT_BYTES
        self._is_agreed = False
        self._left: Callable[[], None] = lambda: None
        self._changed: asyncio.Future[None] | None = None

    @property
    def nonce(self) -> tuple[str, int]:
        """Return the unique name of this call. A copy of the call has its own name, and contains this one among its
        facts."""
        return self._channel.name, self.number

    @property
    def is_open(self) -> bool:
        """Return True while the asking side waits for the last frame of the answer."""
        return self._channel.calls.get(self.number) is self

    def attend(self, left: Callable[[], None]) -> None:
        """Call `left` when the asking side cancels this call, or its connection ends."""
        self._left = left

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    # -- for the channel

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Handle a frame about the call. Raises `PeerFault`: the frame must not come now."""
        if kind == b"w":
            self._credit = credit_after(payload, self._credit)
        elif kind == b"g" and not payload:
            self._is_agreed = True
        elif kind in (b"b", b"B") and self.goes_on and payload:
            self._unread += len(payload)
            if self._unread > CREDIT_BYTES:
                raise PeerFault("a body exceeds its credit")
            self._pieces.append(payload)
            self.goes_on = kind == b"b"
        else:
            raise PeerFault(f"a frame {kind!r} is out of place")
        self._wake()

    def leave(self) -> None:
        """Handle the fact that the asking side no longer waits for the answer."""
        self._left()
        self._wake()

    # -- answering

    async def read(self) -> tuple[bytes, bool]:
        """Return the next piece of the body, and True if more follow.

        Raises:
            CallLeft: no piece came within `BODY_WITHIN_S`, or the call is over.
        """
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                while not self._pieces:
                    if not self.is_open:
                        raise CallLeft
                    await self._change()
        except TimeoutError:
            raise CallLeft from None
        piece = self._pieces.popleft()
        self._unread -= len(piece)
        follows = bool(self._pieces) or self.goes_on
        if follows:
            self.send(b"w", NUMBER.pack(len(piece)))
        return piece, follows

    async def agreed(self) -> None:
        """Tell the asking side that a call which had to wait may take effect from now on, and wait until it agrees.

        Raises:
            CallLeft: the asking side does not agree, and may have the call executed elsewhere.
        """
        self.send(b"S")
        while not self._is_agreed:
            if not self.is_open:
                raise CallLeft
            await self._change()

    async def write(self, data: bytes) -> None:
        """Send these bytes as pieces of the answer, at the pace of the reader. Do nothing once the call has ended."""
        at = 0
        while at < len(data) and self.is_open:
            if not self._credit:
                await self._change()
                continue
            piece = data[at : at + min(self._credit, PIECE_BYTES)]
            at += len(piece)
            self._credit -= len(piece)
            self.send(b"b", piece)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame about the call, unless the call has ended."""
        if self.is_open:
            self._channel.add(frame(kind, self.number, payload))

    def end(self, kind: bytes, payload: bytes = b"") -> None:
        """Send the last frame of the call, unless the call has ended."""
        if self._channel.calls.pop(self.number, None) is not None:
            self._channel.add(frame(kind, self.number, payload))
        if self._changed is not None:  # whoever waits for an agreement gets none
            self._wake()


class AnsweringChannel(asyncio.Protocol):
    """Receive the calls of a peer on one connection. `since` is when the connection began or last brought bytes."""

    def __init__(self, server: "PeerServer") -> None:
        self._server = server
        self._rules = server.rules
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.name = ""
        self.peer = ""
        self.since = 0.0
        self._last = 0
        self._cancelled = 0
        self._definitions: dict[int, Any] = {}
        self.calls: dict[int, PeerIncomingCall] = {}
        self._frames = FrameReader(FRAME.size, 1, CALL.size + MAX_HEAD_BYTES + SMALL_BYTES)
        self._batch = Batch(self._loop, self._write)
        self.add = self._batch.add

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self in self._server.channels:
            return  # it was counted before its TLS handshake
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else ""
        self.since = self._loop.time()
        self._server.entered(self)

    def proved(self, name: str) -> None:
        """Record that the other side has proved that it is a replica. `name` is the name of the connection."""
        self.name = name
        self.since = self._loop.time()
        self._server.known(self)

    def data_received(self, data: bytes) -> None:
        self.since = self._loop.time()
        try:
            for head, payload in self._frames.feed(data):
                self._receive(head[:1], int.from_bytes(head[5:], "big"), payload)
        except (PeerFault, FrameTooLong) as why:
            self._cut(str(why))

    def _cut(self, why: str) -> None:
        if self._server.breaches.allows():
            logger.error("a replica at %s breaks the protocol between replicas, and is cut: %s", self.peer, why)
        self._rules.cut()
        self.abort()

    def _receive(self, kind: bytes, number: int, payload: bytes) -> None:
        if kind == b"q":
            self._begin(number, payload)
        elif kind == b"p" and not number and not payload:
            self._write_alive()
        elif not 0 < number <= self._last or kind not in b"bBcgw":
            raise PeerFault(f"a frame {kind!r} is about no call")
        elif kind == b"c":
            self._cancel(number)
        elif (call := self.calls.get(number)) is not None:
            call.receive(kind, payload)

    def _cancel(self, number: int) -> None:
        self._cancelled += 1
        if self._cancelled > self._last:
            raise PeerFault("calls are cancelled again")
        call = self.calls.pop(number, None)
        if call is not None:
            call.leave()

    def _begin(self, number: int, payload: bytes) -> None:
        if len(payload) < CALL.size:
            raise PeerFault("a call has no head")
        place, defined, size, goes_on = CALL.unpack_from(payload)
        facts_at = CALL.size + defined
        body_at = facts_at + size
        is_kept = place != UNKEPT
        if not 0 <= len(payload) - body_at <= SMALL_BYTES or (is_kept and place >= KEPT):
            raise PeerFault("a call's sizes are wrong")
        if number != self._last + 1 or len(self.calls) >= MAX_CALLS:
            # Both sides count the same calls, because frames are read in the order they were sent.
            raise PeerFault("a call's number is wrong, or there are too many")
        if defined:
            if is_kept and defined > MAX_DEFINITION_BYTES:
                raise PeerFault("a definition is too long")
            definition = self._rules.define(payload[CALL.size : facts_at])
            if is_kept:
                self._definitions[place] = definition
        elif (definition := self._definitions.get(place)) is None:
            raise PeerFault("a call has no definition")
        self._last = number
        facts, body = payload[facts_at:body_at], payload[body_at:]
        call = PeerIncomingCall(self, number, definition=definition, facts=facts, body=body, goes_on=goes_on)
        self.calls[number] = call
        self._rules.begin(call)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _write_alive(self) -> None:
        """Send a heartbeat, unless other bytes are on their way, which also show that this side is alive."""
        if self._transport is not None and not self._transport.get_write_buffer_size():
            self._transport.write(_ALIVE)

    def check(self, now: float) -> None:
        """Send a heartbeat if there are calls. Close a connection that has proved nothing in time, or is idle."""
        if self.calls:
            self._write_alive()
        elif now - self.since >= (IDLE_S if self.name else PROVED_WITHIN_S):
            if not self.name:
                self._rules.cut()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.leave()
        self._server.gone(self)

    def close(self) -> None:
        """Write the answers that are ready, and close the connection. Abort a connection that has proved nothing."""
        self._batch.flush()
        if self._transport is not None and self.name:
            self._transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class PeerServer:
    """Listen for other replicas (peers). `own` has the name of this replica and the keys that prove it, newest
    first."""

    def __init__(self, rules: Rules, *, own: tuple[Sequence[bytes], str], tls: PeerTls | None = None) -> None:
        self.rules = rules
        self._own = own
        self._tls = None if tls is None else tls.answering
        self.channels: set[AnsweringChannel] = set()
        self._unknown: dict[AnsweringChannel, None] = {}  # in the order they came
        self._peers: Counter[str] = Counter()
        self.breaches = LogLimit()

    def entered(self, channel: AnsweringChannel) -> None:
        """Register a new connection, which has proved nothing yet. If there are too many such connections, abort the
        oldest of them. But if more than half of the permitted number come from one address, abort the oldest from
        there."""
        self.channels.add(channel)
        self._unknown[channel] = None
        self._peers[channel.peer] += 1
        if len(self._unknown) > MOST_UNKNOWN:
            [(peer, number)] = self._peers.most_common(1)
            crowd = (c for c in self._unknown if number <= MOST_UNKNOWN // 2 or c.peer == peer)
            self.rules.cut()
            oldest = next(crowd)
            self.known(oldest)
            oldest.abort()

    def known(self, channel: AnsweringChannel) -> None:
        """Stop counting a connection as unknown, because its sender has proved to be a replica, or it is being
        closed."""
        if channel in self._unknown:
            del self._unknown[channel]
            self._peers[channel.peer] -= 1
            if not self._peers[channel.peer]:
                del self._peers[channel.peer]

    def gone(self, channel: AnsweringChannel) -> None:
        """Forget a closed connection."""
        self.known(channel)
        self.channels.discard(channel)

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Listen during an `async with` block, and yield the port (0 takes a free one). Raises `OSError` if the port
        cannot be used."""
        server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        checks = Tasks("listener for peers")
        checks.spawn(self._check())
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for channel in tuple(self.channels):
                channel.close()
            await checks.close()
            await asyncio.sleep(0)  # an aborted connection is closed in the next iteration of the event loop

    def _accept(self) -> asyncio.Protocol:
        channel = AnsweringChannel(self)
        sealed = Sealed(channel, Answering(*self._own), when_proved=channel.proved, failed=self.rules.cut)
        if self._tls is None:
            return sealed
        return Encrypted(sealed, self._tls, accepted=channel.connection_made, failed=self.rules.cut)

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            now = loop.time()
            for channel in tuple(self.channels):
                channel.check(now)
