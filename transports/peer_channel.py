"""Calls to one peer on one connection, the side that asks (`peer_frames.py` has the frames).

What one turn of the event loop asks is one write.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol, cast

from transports.encrypted_wire import PeerTls
from transports.frames import FrameReader, FrameTooLong
from transports.peer_frames import (
    CALL,
    CREDIT_BYTES,
    FRAME,
    KEPT,
    MAX_CALLS,
    NUMBER,
    PIECE_BYTES,
    SMALL_BYTES,
    UNKEPT,
    Batch,
    PeerFault,
    credit_after,
    frame,
)
from transports.sealed_wire import Asking, OtherKeys, OtherReplica, Sealed, Unproven

__all__ = [
    "CHECKED_S",
    "PeerCall",
    "PeerChannel",
    "PeerConnectionLost",
    "PeerRefused",
    "PeerReplaced",
    "PeerTimedOut",
    "PeerUnproven",
    "open_channel",
]

logger = logging.getLogger(__name__)

CONNECT_S: Final = 1.0
TIMED_OUT_AFTER_S: Final = 1.0
"""After how many seconds without a frame the asking side counts a peer as timed out."""

CHECKED_S: Final = 0.25
"""How often the asking side looks for frames that are missing."""

HEARD_S: Final = 1.0
"""After how many seconds without a sign of life nothing is sent to a peer before it has given one."""

MAX_NUMBER: Final = (1 << 32) - 1
"""Of a call: it is sent as four bytes."""


class PeerRefused(Exception):
    """The address refuses connections."""


class PeerReplaced(PeerRefused):
    """Another replica has proved that it is at the address."""


class PeerTimedOut(Exception):
    """No frame has come for a while. One may still come."""


class PeerConnectionLost(Exception):
    """The connection ended before the answer did, or the answer will have no end."""


_TLS: Final = "or only one of the two has gateway.peer_tls, or they have different authorities"


class PeerUnproven(PeerConnectionLost):
    """What accepts connections at the address has not proved that it is the replica: nothing was sent to it. The
    replica may be well, behind something that has dropped the connection.

    `why` is for operators.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Definition(Protocol):
    """What calls have in common. The channel keeps where its peer has it."""

    place: "tuple[PeerChannel, int] | None"

    def packed(self) -> bytes:
        """For the peer."""


_LAST: Final = b"amrex"
"""The frames that end an answer."""

_AT_FIRST: Final = b"nSwamrhx"
_AGREED: Final = b"wamrhx"
_AFTER_HEAD: Final = b"wbex"
_ANY: Final = b"nSwamrhbex"


class PeerCall:
    """A call on a channel, and the frames of its answer."""

    __slots__ = (
        *("_at", "_body", "_channel", "_credit", "_expected", "_frames", "_has_timed_out", "_may_have_run", "_unread"),
        *("_waiter", "_when_answered", "asked_at", "number"),
    )

    def __init__(self, channel: "PeerChannel", number: int, body: bytes) -> None:
        self._channel = channel
        self.number = number
        self.asked_at = monotonic()
        self._body = body
        self._at = min(len(body), SMALL_BYTES)  # the channel sends the begin with the call
        self._credit = CREDIT_BYTES - self._at
        self._may_have_run = True
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._unread = 0
        self._expected = _AT_FIRST
        self._waiter: asyncio.Future[None] | None = None
        self._has_timed_out = False
        self._when_answered: Callable[[], None] | None = None

    @property
    def nonce(self) -> tuple[str, int]:
        """Names the call for the peer, which executes only one of the copies with this name."""
        return self._channel.name, self.number

    @property
    def may_have_run(self) -> bool:
        """Whether it may have taken effect. Asked if it has ended without an answer."""
        return self._may_have_run and self._at == len(self._body)

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call back once, when the answer is there, or something else about the call has to be known. For a reader
        without a task; `next` takes its place then."""
        self._when_answered = callback

    @property
    def answer(self) -> bytes | None:
        """The answer, if it is there in one frame and was not read: the size of its head in two bytes, the head, the
        body."""
        return self._frames[0][1] if self._frames and self._frames[0][0] == b"a" else None

    # -- for the channel

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Handle a frame of the peer. Raises `PeerFault`: it is not one that may come now."""
        if kind not in self._expected:
            raise PeerFault(f"a frame {kind!r} is out of place")
        if kind == b"w":
            self._credit = credit_after(payload, self._credit)
            self._send_body()
            return
        if kind == b"n":
            self._may_have_run = False
            return
        if kind == b"S":
            self._may_have_run = True
            self._expected = _AGREED
            self._channel.add(frame(b"g", self.number))
            return
        if kind == b"h":
            self._expected = _AFTER_HEAD
        elif kind == b"b":
            self._unread += len(payload)
            if not payload or self._unread > CREDIT_BYTES:
                raise PeerFault("an answer exceeds its credit")
        elif kind in _LAST:
            self._expected = b""
        self._frames.append((kind, payload))
        self.wake()

    def _send_body(self) -> None:
        """Send as much of the rest of the body as there is credit for."""
        while self._credit and self._at < len(self._body):
            piece = self._body[self._at : self._at + min(self._credit, PIECE_BYTES)]
            self._at += len(piece)
            self._credit -= len(piece)
            self._channel.add(frame(b"B" if self._at == len(self._body) else b"b", self.number, piece))

    def time_out(self) -> None:
        """Tell the reader, if it waits, that nothing has come from the peer for too long."""
        self._has_timed_out = not self._frames
        self.wake()

    def lose(self, *, was_sent: bool) -> None:
        """Tell the reader that no frame will come."""
        self._may_have_run = self._may_have_run and was_sent
        self.wake()

    def wake(self) -> None:
        """Tell the reader that there is something to know about the call."""
        if self._when_answered is not None:
            answered, self._when_answered = self._when_answered, None
            answered()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- for the reader

    async def next(self) -> tuple[bytes, bytes]:
        """The next frame: `h`, `b` and `e` with the last piece; or `m` or `r`.

        Raises:
            PeerTimedOut: none came, no heartbeat either. It can be waited for again.
            PeerConnectionLost: none will come.
        """
        while not self._frames:
            if not self._channel.has(self):
                raise PeerConnectionLost
            if self._has_timed_out:
                self._has_timed_out = False
                raise PeerTimedOut
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._has_timed_out = False
        kind, payload = self._frames.popleft()
        if kind == b"a":
            size = 2 + int.from_bytes(payload[:2], "big")
            self._frames.appendleft((b"e", payload[size:]))
            return b"h", payload[2:size]
        if kind == b"x":
            self.done()
            raise PeerConnectionLost
        if kind == b"b":
            self._unread -= len(payload)
            if self._expected and self._channel.has(self):
                self._channel.add(frame(b"w", self.number, NUMBER.pack(len(payload))))
        return kind, payload

    @property
    def quiet_for_s(self) -> float:
        """Seconds since the peer's last frame."""
        return asyncio.get_running_loop().time() - self._channel.quiet_since

    def done(self) -> None:
        """The answer is complete."""
        self._channel.forget(self)

    def close(self) -> None:
        """Cancel the call, unless it has ended."""
        self._channel.cancel(self, has_ended=not self._expected)
        self.wake()

    def fault(self, why: str) -> None:
        """End the channel: what the peer has answered cannot be read."""
        self._channel.fault(why)


class PeerChannel(asyncio.Protocol):
    """A channel to a peer. `name` is no other channel's."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.name = ""
        self._calls: dict[int, PeerCall] = {}
        self._number = 0
        self._sent = 0
        self._heard: asyncio.Future[None] | None = None
        self._places: list[Definition | None] = [None] * KEPT
        self._place = 0
        self._batch = Batch(self._loop, self._write)
        self.add = self._batch.add
        self._is_paused = False
        self._frames = FrameReader(FRAME.size, 1, 2 + 2 * SMALL_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0
        self._heard_at = self._loop.time()
        self.quiet_since = self._heard_at  # later, if there was no call to hear of, or this process was suspended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def proved(self, name: str) -> None:
        """The peer has proved that it is the replica. This is the name of the connection."""
        self.name = name
        self._heard_at = self._loop.time()

    @property
    def has_room(self) -> bool:
        """Whether it is open and takes one more call. One that has used its numbers closes after its last call."""
        return self._transport is not None and len(self._calls) < MAX_CALLS and self._number < MAX_NUMBER

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # -- asking

    @property
    def is_heard(self) -> bool:
        """Whether the peer was heard of a moment ago, and reads. What is sent to one that is paused or cut off may take
        effect later, and its client cannot be told whether it did."""
        return self._loop.time() - self._heard_at < HEARD_S and not self._is_paused

    async def hear(self) -> None:
        """Wait for a sign of life.

        Raises:
            PeerTimedOut: none has come.
            PeerConnectionLost: none will come.
        """
        if self._heard is None:
            self._heard = self._loop.create_future()
            self.add(frame(b"p"))
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.shield(self._heard)
        except TimeoutError:
            raise PeerTimedOut from None
        if self._transport is None:
            raise PeerConnectionLost

    def ask(self, definition: Definition | bytes, facts: bytes, body: bytes) -> PeerCall:
        """Send a call. A definition as bytes is not kept."""
        self._number = number = self._number + 1
        call = PeerCall(self, number, body)
        if not self._calls:
            self._watch()
        self._calls[number] = call
        place, packed = (UNKEPT, definition) if isinstance(definition, bytes) else self._placed(definition)
        is_large = len(body) > SMALL_BYTES
        begin = body[:SMALL_BYTES] if is_large else body
        head = CALL.pack(place, len(packed), len(facts), is_large)
        size = len(head) + len(packed) + len(facts) + len(begin)
        self.add(b"".join((FRAME.pack(b"q", size, number), head, packed, facts, begin)))
        return call

    def _placed(self, definition: Definition) -> tuple[int, bytes]:
        """Where the peer has a definition, and the definition if it has to be sent."""
        if definition.place is not None:
            channel, place = definition.place
            if channel is self and self._places[place] is definition:
                return place, b""
        place = self._place
        self._place = (place + 1) % KEPT
        self._places[place] = definition
        definition.place = (self, place)
        return place, definition.packed()

    def _write(self, content: bytes) -> None:
        if self._transport is not None:
            self._sent = self._number
            self._transport.write(content)

    def has(self, call: PeerCall) -> bool:
        """Whether an answer to this call may still come."""
        return call.number in self._calls

    def forget(self, call: PeerCall) -> None:
        """The call is over."""
        if self._calls.pop(call.number, None) is not None and not self._calls and self._number >= MAX_NUMBER:
            self.close()

    def cancel(self, call: PeerCall, *, has_ended: bool) -> None:
        """Cancel a call, unless it is over. `has_ended`: so it is for the peer."""
        if self.has(call):
            self.forget(call)
            if not has_ended:
                self.add(frame(b"c", call.number))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    # -- answers

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.quiet_since = self._loop.time()
        if self._heard is not None:
            self._tell_heard()
        try:
            for head, payload in self._frames.feed(data):
                self._receive(head[:1], int.from_bytes(head[5:], "big"), payload)
        except PeerFault as why:
            self.fault(str(why))
        except FrameTooLong:
            self.fault("a frame is too long")

    def _receive(self, kind: bytes, number: int, payload: bytes) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.receive(kind, payload)
        elif number > self._number or kind not in (_ANY if number else b"p"):
            raise PeerFault(f"a frame {kind!r} is about a call that was not sent")

    def _tell_heard(self) -> None:
        heard, self._heard = self._heard, None
        if heard is not None and not heard.done():
            heard.set_result(None)

    # -- the end

    def _watch(self) -> None:
        """Check for heartbeats from now on."""
        self.quiet_since = self._checked_at = self._loop.time()
        self._timer = self._timer or self._loop.call_later(CHECKED_S, self._check_timeout)

    def _check_timeout(self) -> None:
        if not self._calls:
            self._timer = None
            return
        now = self._loop.time()
        was_away = now - self._checked_at > 4 * CHECKED_S
        self._checked_at = now
        self._timer = self._loop.call_later(CHECKED_S, self._check_timeout)
        if was_away:
            self.quiet_since = now  # this process was suspended: heartbeats were sent and not read
        elif now - self.quiet_since >= TIMED_OUT_AFTER_S:
            for call in tuple(self._calls.values()):
                call.time_out()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_heard()
        calls, self._calls = self._calls, {}
        for number, call in calls.items():
            call.lose(was_sent=number <= self._sent)

    def fault(self, why: str) -> None:
        """End the channel: the peer has broken its rules."""
        logger.error("a replica breaks the protocol between replicas, and its connection is closed: %s", why)
        self.close()

    def close(self) -> None:
        """End the channel. Its calls are lost."""
        if self._transport is not None:
            self._transport.abort()


async def open_channel(address: str, replica: str, keys: Sequence[bytes], tls: PeerTls | None = None) -> PeerChannel:
    """A channel to HOST:PORT, where that replica has proved that it is there. `keys` prove that a process is a replica,
    newest first. Nothing was sent yet.

    Raises:
        PeerRefused: the connection was refused.
        PeerReplaced: another replica is there.
        PeerUnproven: what listens there has not proved that it is the replica, or has closed the connection.
        PeerTimedOut: the peer neither accepts nor refuses the connection, or proves nothing.
    """
    host, _, port = address.rpartition(":")
    channel = PeerChannel()
    sealed = Sealed(channel, Asking(keys, replica), when_proved=channel.proved)
    try:
        async with asyncio.timeout(CONNECT_S):
            # No name is sent: certificates name no replica.
            context, name = (None, None) if tls is None else (tls.asking, "")
            await asyncio.get_running_loop().create_connection(
                lambda: sealed, host.strip("[]"), int(port), ssl=context, server_hostname=name
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
            channel.close()
    return channel
