"""Small calls to one peer on one connection, the side that asks: what one turn of the event loop asks is one write.

A channel begins as a connection of `replica_wire.py`, whose peer has agreed to it. From then on the asking side writes
records: a size (four bytes, big endian), a MAC, and the content: frames `q`, each one call, `c`, which cancels one,
`g`, which lets one go on, and `p`, which asks for a sign of life. The answering side writes frames
(`replica_wire.frame`), each with the number of its call:

- `n`, it waits, and is not sent to a server before the asking side has answered `g` to the frame `S`;
- `a`, its whole answer; `m` and `r`, as on a connection of its own; `x`, its answer goes on at a connection of its own,
  which begins with that ticket;
- `p`, a heartbeat, or the answer to `p`.

A call that went out may have taken effect, whatever becomes of the channel, unless the last word about it was `n`: what
the answering side has written may be lost on the way, in something between the two that dies.

Answers are small, and all of them are read, so a client that reads slowly holds nobody up: what is large, and what is
a stream, gets a connection of its own. docs/adr/0007-peer-connections.md has the reasons.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from time import monotonic
from typing import Final, Protocol

from transports.frames import FrameReader, FrameTooLong
from transports.replica_wire import (
    CHECKED_S,
    CONNECT_S,
    HEAD_BYTES,
    HEARD_S,
    TIMED_OUT_AFTER_S,
    PeerConnectionLost,
    PeerTimedOut,
    frame,
)

__all__ = [
    "CALL",
    "MAX_CALLS",
    "MAX_DEFINITION_BYTES",
    "NUMBER",
    "SMALL_BYTES",
    "UNKEPT",
    "Batch",
    "PeerCall",
    "PeerChannel",
]

SMALL_BYTES: Final = 64 << 10
"""The most bytes of the body of a call or an answer on a channel."""

MAX_DEFINITION_BYTES: Final = 8 << 10
"""The most bytes of what calls have in common, which the answering side keeps."""

MAX_NUMBER: Final = (1 << 32) - 1
"""Of a call: it is sent as four bytes."""

MAX_CALLS: Final = 1_024
"""The most calls of one channel that have no answer."""

KEPT: Final = 1_024
"""How many definitions the answering side keeps for one channel."""

UNKEPT: Final = 0xFFFF
"""In place of the number of a definition: it is for this call alone."""

_BATCH_BYTES: Final = 256 << 10
NUMBER: Final = Struct(">I")
CALL: Final = Struct(">IHIH")
"""The beginning of a frame `q`: the number of the call, the number of its definition, the sizes of the definition (0:
it was sent before) and of the call's own facts. Definition, facts and body follow."""


class Batch:
    """Frames that one turn of the event loop writes together."""

    __slots__ = ("_frames", "_loop", "_size", "_write")

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._write = write
        self._frames: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Write this at the end of the turn."""
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(data)
        self._size += len(data)
        if self._size >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what there is now."""
        if self._frames:
            data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
            self._frames.clear()
            self._size = 0
            self._write(data)


class Definition(Protocol):
    """What calls have in common. The channel keeps where its peer has it."""

    place: "tuple[PeerChannel, int] | None"

    def packed(self) -> bytes:
        """For the peer."""


class PeerCall:
    """A call on a channel. Its frames are those of `PeerConnection`: the answer is a head and an end."""

    __slots__ = (
        "_channel",
        "_frames",
        "_has_timed_out",
        "_waiter",
        "_when_answered",
        "asked_at",
        "may_have_run",
        "number",
    )

    def __init__(self, channel: "PeerChannel", number: int) -> None:
        self._channel = channel
        self.number = number
        self.asked_at = monotonic()
        self.may_have_run = True
        """Whether it may have taken effect. Asked if it has ended without an answer."""
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._has_timed_out = False
        self._when_answered: Callable[[], None] | None = None

    @property
    def nonce(self) -> str:
        """Names the call for the peer, which executes only one of the copies with this name."""
        return f"{self._channel.name}.{self.number}"

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call back once, when the answer is there, or something else about the call has to be known. For a reader
        without a task; `next` takes its place then."""
        self._when_answered = callback

    @property
    def answer(self) -> bytes | None:
        """The answer, if it is there and was not read: the size of its head in two bytes, the head, the body."""
        return self._frames[0][1] if self._frames and self._frames[0][0] == b"a" else None

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Handle a frame of the peer, or what has become of the channel."""
        self._frames.append((kind, payload))
        self.wake()

    def time_out(self) -> None:
        """Nothing has come from the peer for too long."""
        self._has_timed_out = True
        self.wake()

    def wake(self) -> None:
        """There is something to know about the call."""
        if self._when_answered is not None:
            answered, self._when_answered = self._when_answered, None
            answered()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> tuple[bytes, bytes]:
        """As `PeerConnection.next`."""
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
        kind, payload = self._frames.popleft()
        if kind != b"a":
            return kind, payload
        size = 2 + int.from_bytes(payload[:2], "big")
        self._frames.appendleft((b"e", payload[size:]))
        return b"h", payload[2:size]

    @property
    def quiet_for_s(self) -> float:
        """Seconds since the peer's last frame."""
        return asyncio.get_running_loop().time() - self._channel.quiet_since

    def done(self) -> None:
        """The answer is complete."""
        self._channel.forget(self)

    def close(self) -> None:
        """Cancel the call, unless it has ended."""
        self._channel.cancel(self)
        self.wake()


class PeerChannel(asyncio.Protocol):
    """A channel to a peer. `seal` makes a MAC for the record of that number. `name` is no other channel's."""

    def __init__(self, transport: asyncio.Transport, name: str, seal: Callable[[int, bytes], bytes]) -> None:
        self._transport: asyncio.Transport | None = transport
        self._loop = asyncio.get_running_loop()
        self._seal = seal
        self.name = name
        self._calls: dict[int, PeerCall] = {}
        self._number = 0
        self._sent = 0
        self._records = 0
        self._heard: asyncio.Future[None] | None = None
        self._places: list[Definition | None] = [None] * KEPT
        self._place = 0
        self._batch = Batch(self._loop, self._write)
        self._is_paused = False
        self._frames = FrameReader(HEAD_BYTES, 1, 2 * SMALL_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0
        self._heard_at = self._loop.time()
        self.quiet_since = self._heard_at  # later, if there was no call to hear of, or this process was suspended
        transport.set_protocol(self)

    @property
    def has_room(self) -> bool:
        """Whether it takes one more call. A channel that has used its numbers takes none, and closes after the last."""
        is_usable = self._transport is not None and not self._is_paused
        return is_usable and len(self._calls) < MAX_CALLS and self._number < MAX_NUMBER

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    # -- asking

    @property
    def is_heard(self) -> bool:
        """Whether the peer was heard of a moment ago. What is sent to one that is paused or cut off may take effect
        later, and its client cannot be told whether it did."""
        return self._loop.time() - self._heard_at < HEARD_S

    async def hear(self) -> None:
        """Wait for a sign of life.

        Raises:
            PeerTimedOut: none has come.
            PeerConnectionLost: none will come.
        """
        if self._heard is None:
            self._heard = self._loop.create_future()
            self._batch.add(frame(b"p"))
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.shield(self._heard)
        except TimeoutError:
            raise PeerTimedOut from None
        if not self.is_open:
            raise PeerConnectionLost

    def ask(self, definition: Definition | bytes, facts: bytes, body: bytes) -> PeerCall:
        """Send a call. A definition as bytes is not kept."""
        self._number = number = self._number + 1
        call = PeerCall(self, number)
        if not self._calls:
            self._watch()
        self._calls[number] = call
        place, packed = (UNKEPT, definition) if isinstance(definition, bytes) else self._placed(definition)
        head = CALL.pack(number, place, len(packed), len(facts))
        size = len(head) + len(packed) + len(facts) + len(body)
        self._batch.add(b"".join((b"q", size.to_bytes(4, "big"), head, packed, facts, body)))
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
            mac = self._seal(self._records, content)
            self._records += 1
            self._transport.write(b"".join((len(content).to_bytes(4, "big"), mac, content)))

    def has(self, call: PeerCall) -> bool:
        """Whether an answer to this call may still come."""
        return call.number in self._calls

    def forget(self, call: PeerCall) -> None:
        """The call is over."""
        if self._calls.pop(call.number, None) is not None and not self._calls and self._number >= MAX_NUMBER:
            self.close()

    def cancel(self, call: PeerCall) -> None:
        """Cancel a call, unless it is over."""
        if self.has(call):
            self.forget(call)
            self._batch.add(frame(b"c", NUMBER.pack(call.number)))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    # -- answers

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.quiet_since = self._loop.time()
        self._tell_heard()
        try:
            for head, content in self._frames.feed(data):
                self._receive(head[:1], content[: NUMBER.size], content[NUMBER.size :])
        except FrameTooLong:
            self.close()

    def _receive(self, kind: bytes, raw: bytes, payload: bytes) -> None:
        number = int.from_bytes(raw, "big")
        call = self._calls.get(number)
        if call is None:
            return  # a heartbeat, or about a call that is over
        if kind == b"n":
            call.may_have_run = False
        elif kind == b"S":
            call.may_have_run = True
            self._batch.add(frame(b"g", raw))
        elif kind != b"p":
            call.receive(kind, payload)

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
            call.may_have_run = call.may_have_run and number <= self._sent
            call.wake()

    def close(self) -> None:
        """End the channel. Its calls are lost."""
        if self._transport is not None:
            self._transport.abort()
