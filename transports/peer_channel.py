"""Send calls to another replica of the gateway (the peer) on one connection, and receive the answers. `peer_frames.py`
defines the messages (frames). All frames of one turn of the event loop are sent in one write."""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol, cast

from transports.peer_authentication import Asking, OtherKeys, OtherReplica, Sealed, Unproven
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
    LogLimit,
    PeerFault,
    credit_after,
    frame,
)
from transports.peer_tls import PeerTls
from transports.sized_frames import FrameReader, FrameTooLong

logger = logging.getLogger(__name__)

CONNECT_S: Final = 1.0
TIMED_OUT_AFTER_S: Final = 1.0
"""Seconds without a frame after which the asking side counts a peer as timed out."""

CHECKED_S: Final = 0.25
"""Seconds between two checks if frames of the peer are missing."""

HEARD_S: Final = 1.0
"""Seconds after the last frame of a peer, after which it has to answer a ping (frame `p`) before it gets another
call."""

MAX_NUMBER: Final = (1 << 32) - 1
"""The largest number of a call, which is sent as four bytes."""


_breaches: Final = LogLimit()
"""Limits the log lines about faults of peers, for all channels together: after a fault, a new channel is opened at
once."""


class PeerRefused(Exception):
    """The address refuses connections."""


class PeerReplaced(PeerRefused):
    """Another replica has proved that it is at the address."""


class PeerTimedOut(Exception):
    """No frame has come from the peer for a while. One may still come."""


class PeerConnectionLost(Exception):
    """The connection ended before the answer was complete, or the peer cannot complete the answer."""


_TLS: Final = "or only one of the two has gateway.peer_tls, or they have different authorities"


class PeerUnproven(PeerConnectionLost):
    """The process at the address has not proved that it is the replica, so no call was sent to it. The replica itself
    may still work: something in between may have dropped the connection. `why` is a text for operators."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class PeerOtherKeys(PeerUnproven):
    """The process at the address is a gateway, but has no key in common with this one."""

    def __init__(self) -> None:
        super().__init__("the gateway at that address has other keys")


class Definition(Protocol):
    """Facts that several calls share, and that a peer therefore gets only once."""

    place: "tuple[PeerChannel, int] | None"
    """The channel on which the facts were sent last, and their number there; None before they are sent."""

    def packed(self) -> bytes:
        """Return the facts as bytes for the peer."""


_LAST: Final = b"amrex"
"""The kinds of frames that are the last of an answer."""

_AT_FIRST: Final = b"nSwamrhx"
_AGREED: Final = b"wamrhx"
_AFTER_HEAD: Final = b"wbex"
_ANY: Final = b"nSwamrhbex"


class PeerCall:
    """Send one call on a channel, and receive the frames of its answer."""

    __slots__ = (
        *("_at", "_body", "_channel", "_credit", "_expected", "_frames", "_has_timed_out", "_may_have_run", "_unread"),
        *("_waiter", "_when_answered", "asked_at", "number"),
    )

    def __init__(self, channel: "PeerChannel", number: int, body: bytes) -> None:
        self._channel = channel
        self.number = number
        self.asked_at = monotonic()
        self._body = body
        self._at = min(len(body), SMALL_BYTES)  # the channel sends the first part with the call
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
        """Return the unique name of the call. Copies of the call have this name in their facts, so that the peer
        executes only one of them."""
        return self._channel.name, self.number

    @property
    def may_have_run(self) -> bool:
        """Return True if the call may have taken effect at the peer, by the frames received so far."""
        return self._may_have_run and self._at == len(self._body)

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the first frame of the answer has come, or the call was lost or has timed out. For
        readers that are not asyncio tasks, which then call `next`."""
        self._when_answered = callback

    @property
    def answer(self) -> bytes | None:
        """Return the whole answer if it came in one frame and was not read yet: the size of the head (two bytes), the
        head, and the body. Return None for any other answer."""
        return self._frames[0][1] if self._frames and self._frames[0][0] == b"a" else None

    # -- for the channel

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Handle a frame of the peer. Raises `PeerFault`: a frame of this kind must not come now."""
        if kind not in self._expected:
            raise PeerFault(f"a frame {kind!r} is out of place")
        if kind == b"w":
            self._credit = credit_after(payload, self._credit)
            while self._credit and self._at < len(self._body):  # as much of the rest of the body as the peer allows
                piece = self._body[self._at : self._at + min(self._credit, PIECE_BYTES)]
                self._at += len(piece)
                self._credit -= len(piece)
                self._channel.add(frame(b"B" if self._at == len(self._body) else b"b", self.number, piece))
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

    def time_out(self) -> None:
        """Wake a waiting reader, because nothing has come from the peer for too long."""
        self._has_timed_out = not self._frames
        self.wake()

    def lose(self, *, was_sent: bool) -> None:
        """Wake the waiting reader, because no more frames will come. `was_sent`: the call may have reached the peer."""
        self._may_have_run = self._may_have_run and was_sent
        self.wake()

    def wake(self) -> None:
        """Wake the waiting reader, because the state of the call has changed."""
        if self._when_answered is not None:
            answered, self._when_answered = self._when_answered, None
            answered()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- for the reader

    async def next(self) -> tuple[bytes, bytes]:
        """Return the kind and the payload of the next frame. An answer is `h` (head), `b` (piece) and `e` (last piece).
        Any other call gets one frame: `m` (the peer does not serve the session) or `r` (it refuses the call).

        Raises:
            PeerTimedOut: no frame came, and no heartbeat. The caller may call again.
            PeerConnectionLost: no frame will come.
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
        """Return the seconds since the peer's last frame."""
        return asyncio.get_running_loop().time() - self._channel.quiet_since

    def done(self) -> None:
        """Forget the call, whose answer is complete."""
        self._channel.forget(self)

    def close(self) -> None:
        """Cancel the call, unless it has ended."""
        self._channel.cancel(self, has_ended=not self._expected)
        self.wake()

    def fault(self, why: str) -> None:
        """Close the channel, because the peer's answer cannot be read. `why` is logged."""
        self._channel.fault(why)


class PeerChannel(asyncio.Protocol):
    """Send calls to a peer on one connection, and pass the answers to the calls. `name` is unique among channels."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._address = ""
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
        self.quiet_since = self._heard_at  # a later time if there was no call, or this process was suspended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._address = ":".join(map(str, transport.get_extra_info("peername", ("?", 0))[:2]))

    def proved(self, name: str) -> None:
        """Record that the peer has proved that it is the replica. `name` is the name of the connection."""
        self.name = name
        self._heard_at = self._loop.time()

    @property
    def has_room(self) -> bool:
        """Return True if the channel is open and takes one more call. A channel without unused numbers closes after its
        last call."""
        return self._transport is not None and len(self._calls) < MAX_CALLS and self._number < MAX_NUMBER

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # -- asking

    @property
    def is_heard(self) -> bool:
        """Return True if a frame of the peer has come within `HEARD_S`, and the peer reads what is sent. Send no call
        on another channel: it may take effect later, and the client could not be told whether it did."""
        return self._loop.time() - self._heard_at < HEARD_S and not self._is_paused

    async def hear(self) -> None:
        """Send the peer a ping, and wait for the answer.

        Raises:
            PeerTimedOut: no answer came within `CONNECT_S`.
            PeerConnectionLost: the connection has ended.
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
        """Send a call, and return it; its answer comes later. `definition` has the facts that the call shares with
        others: the peer stores them for later calls, unless they are given as bytes. `facts` belong to this call
        alone."""
        self._number = number = self._number + 1
        call = PeerCall(self, number, body)
        if not self._calls:
            self.quiet_since = self._checked_at = self._loop.time()
            self._timer = self._timer or self._loop.call_later(CHECKED_S, self._check_timeout)
        self._calls[number] = call
        place, packed = (UNKEPT, definition) if isinstance(definition, bytes) else self._placed(definition)
        is_large = len(body) > SMALL_BYTES
        begin = body[:SMALL_BYTES] if is_large else body
        head = CALL.pack(place, len(packed), len(facts), is_large)
        size = len(head) + len(packed) + len(facts) + len(begin)
        self.add(b"".join((FRAME.pack(b"q", size, number), head, packed, facts, begin)))
        return call

    def _placed(self, definition: Definition) -> tuple[int, bytes]:
        """Return the number under which the peer stores a definition, and the bytes to send for it: none if the peer
        has the definition already."""
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
        """Return True if an answer to this call may still come."""
        return call.number in self._calls

    def forget(self, call: PeerCall) -> None:
        """Remove a call that has ended."""
        if self._calls.pop(call.number, None) is not None and not self._calls and self._number >= MAX_NUMBER:
            self.close()

    def cancel(self, call: PeerCall, *, has_ended: bool) -> None:
        """Remove a call for whose answer nobody waits. Tell the peer to cancel it, unless the call `has_ended`
        there."""
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
        except (PeerFault, FrameTooLong) as why:
            self.fault(str(why))

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
        """Close the channel, because the peer has broken the protocol. Log `why`, unless such a line was logged a
        moment ago."""
        if _breaches.allows():
            what = "the replica at %s breaks the protocol between replicas, and its connection is closed: %s"
            logger.error(what, self._address, why)
        self.close()

    def close(self) -> None:
        """Close the channel. Its calls are lost."""
        if self._transport is not None:
            self._transport.abort()


async def open_channel(address: str, replica: str, keys: Sequence[bytes], tls: PeerTls | None = None) -> PeerChannel:
    """Connect to HOST:PORT, and return the channel once the replica with this name has proved itself there. `keys` is
    the key ring by which replicas prove themselves, newest first. No call is sent yet.

    Raises:
        PeerRefused: the connection was refused.
        PeerReplaced: another replica is there.
        PeerOtherKeys: the process there is a gateway with other keys.
        PeerUnproven: the process there has not proved that it is the replica, or has closed the connection.
        PeerTimedOut: the peer neither accepts nor refuses the connection, or proves nothing within `CONNECT_S`; or
            `address` is not HOST:PORT.
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
        raise PeerOtherKeys from None
    except Unproven:
        raise PeerUnproven(f"what answers at that address is not a gateway of this version, {_TLS}") from None
    except (ssl.SSLError, ConnectionError) as error:
        raise PeerUnproven(
            f"what accepts connections at that address ends them ({str(error) or type(error).__name__}), {_TLS}"
        ) from None
    except (OSError, TimeoutError, ValueError, OverflowError):  # or the store has no address of that replica
        raise PeerTimedOut from None
    finally:
        if not channel.name:
            channel.close()
    return channel
