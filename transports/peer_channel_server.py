"""Small calls of one peer on one connection, the side that answers (`peer_channel.py` has the frames).

The answers of one turn of the event loop are one write.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from transports.frames import FrameReader, FrameTooLong
from transports.peer_channel import (
    CALL,
    KEPT,
    MAX_CALLS,
    MAX_DEFINITION_BYTES,
    NUMBER,
    SMALL_BYTES,
    UNKEPT,
    Batch,
)
from transports.replica_wire import HEAD_BYTES, frame

__all__ = ["AnsweringChannel", "Call", "CallFaulty", "CallLeft", "Rules"]

_SIZE: Final = 4
_RECORD_BYTES: Final = 1 << 20
_HEARTBEAT: Final = frame(b"p", bytes(4))


class CallFaulty(Exception):
    """What a peer has sent cannot be read."""


class CallLeft(Exception):
    """The asking side has cancelled the call, or is gone."""


class Call(NamedTuple):
    """A call that has arrived. `definition` is what `define` has returned for what it shares with others."""

    channel: "AnsweringChannel"
    number: int
    definition: Any
    facts: bytes
    body: bytes


class Rules(NamedTuple):
    """What a channel asks of its owner.

    `mac_bytes` is the size of a MAC, `verify` tells whether one is right for the record of that number. `define` reads
    a definition, or raises `CallFaulty`. `begin` begins a call, and raises nothing. `cut` is called when the peer
    breaks a rule.
    """

    mac_bytes: int
    verify: Callable[[int, bytes, bytes], bool]
    define: Callable[[bytes], Any]
    begin: Callable[[Call], None]
    cut: Callable[[], None]


class AnsweringChannel(asyncio.Protocol):
    """The channel of a peer that has opened it. `ended` is called with it when it is closed."""

    def __init__(
        self, transport: asyncio.Transport, name: str, rules: Rules, ended: Callable[["AnsweringChannel"], None]
    ) -> None:
        self.name = name
        self._transport: asyncio.Transport | None = transport
        self._loop = asyncio.get_running_loop()
        self._rules = rules
        self._ended = ended
        self._records = 0
        self._last = 0
        self._definitions: dict[int, Any] = {}
        self._left: dict[int, Callable[[], None]] = {}
        self._open: set[int] = set()  # the calls that have arrived, without those that have ended or were cancelled
        self._agreed: dict[int, asyncio.Future[None]] = {}
        self._cancellations = 0
        self._frames = FrameReader(_SIZE + rules.mac_bytes, 0, _RECORD_BYTES)
        self._batch = Batch(self._loop, self._write)
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        came: list[Call | int] = []
        try:
            self._read_records(data, came)
        except (CallFaulty, FrameTooLong):
            self._rules.cut()
            self.abort()
            return
        self._begin(came)

    def _read_records(self, data: bytes, came: list[Call | int]) -> None:
        """Read the complete records. A head is the size of the record, and its proof."""
        for head, content in self._frames.feed(data):
            if not self._rules.verify(self._records, content, head[_SIZE:]):
                raise CallFaulty
            self._records += 1
            self._read(content, came)

    def _read(self, content: bytes, came: list[Call | int]) -> None:
        """Read a record. A cancellation is the number of its call."""
        at, end = 0, len(content)
        while at < end:
            begin = at + HEAD_BYTES
            kind, size = content[at : at + 1], int.from_bytes(content[at + 1 : begin], "big")
            at = begin + size
            if at > end:
                raise CallFaulty
            if kind == b"q":
                came.append(self._call(content, begin, at))
            elif kind == b"c" and size == NUMBER.size:
                self._cancel(int.from_bytes(content[begin:at], "big"), came)
            elif kind == b"g" and size == NUMBER.size:
                self._let_go_on(int.from_bytes(content[begin:at], "big"))
            elif kind == b"p" and not size:
                self._batch.add(_HEARTBEAT)
            else:
                raise CallFaulty

    def _let_go_on(self, number: int) -> None:
        agreed = self._agreed.pop(number, None)
        if agreed is not None and not agreed.done():
            agreed.set_result(None)

    def _cancel(self, number: int, came: list[Call | int]) -> None:
        self._cancellations += 1
        if not 0 < number <= self._last or self._cancellations > self._last:
            raise CallFaulty  # a call is cancelled once, after it was sent
        if number in self._open:
            self._open.remove(number)
            self._has_left(number)
            came.append(number)

    def _call(self, content: bytes, begin: int, end: int) -> Call:
        facts_at = begin + CALL.size
        if facts_at > end:
            raise CallFaulty
        number, place, defined, size = CALL.unpack_from(content, begin)
        body_at = facts_at + defined + size
        is_kept = place != UNKEPT
        if number != self._last + 1 or not 0 <= end - body_at <= SMALL_BYTES or (is_kept and place >= KEPT):
            raise CallFaulty
        self._open.add(number)
        if len(self._open) > MAX_CALLS:
            raise CallFaulty  # the asking side counts as here, because frames are read in the order they were sent
        self._last = number
        if defined:
            if defined > MAX_DEFINITION_BYTES:
                raise CallFaulty
            definition = self._rules.define(content[facts_at : facts_at + defined])
            if is_kept:
                self._definitions[place] = definition
        elif (definition := self._definitions.get(place)) is None:
            raise CallFaulty
        return Call(self, number, definition, content[facts_at + defined : body_at], content[body_at:end])

    def _begin(self, came: list[Call | int]) -> None:
        for call in came:
            if not isinstance(call, int):
                self._rules.begin(call)
            elif (leave := self._left.pop(call, None)) is not None:
                leave()

    # -- answering

    def attend(self, number: int, left: Callable[[], None]) -> None:
        """Have `left` called if the asking side cancels this call, or is gone."""
        if self._transport is None:
            self._loop.call_soon(left)
        else:
            self._left[number] = left

    def send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        """Send a frame about a call that goes on."""
        self._batch.add(frame(kind, NUMBER.pack(number) + payload))

    async def agreed(self, number: int) -> None:
        """Wait until the asking side knows that a call that has waited may take effect from now on.

        Raises:
            CallLeft: it may have the call executed elsewhere.
        """
        if number not in self._open or self._transport is None:
            raise CallLeft
        self._agreed[number] = agreed = self._loop.create_future()
        self.send(b"S", number)
        try:
            await agreed
        finally:
            self._agreed.pop(number, None)

    def _has_left(self, number: int) -> None:
        agreed = self._agreed.pop(number, None)
        if agreed is not None and not agreed.done():
            agreed.set_exception(CallLeft())

    def end(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        """Send the last frame of a call."""
        self.forget(number)
        self._batch.add(b"".join((kind, (4 + len(payload)).to_bytes(4, "big"), NUMBER.pack(number), payload)))

    def forget(self, number: int) -> None:
        """The call is over, whether or not it was answered."""
        self._open.discard(number)
        self._left.pop(number, None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def heartbeat(self) -> None:
        """Send a heartbeat if there are calls."""
        if self._left and self._transport is not None and not self._transport.get_write_buffer_size():
            self._transport.write(_HEARTBEAT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for number in tuple(self._agreed):
            self._has_left(number)
        left, self._left = self._left, {}
        for leave in left.values():
            leave()
        self._ended(self)

    def close(self) -> None:
        """Write the answers that are there, and close."""
        self._batch.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
