"""Define the frames of the channel between two replicas, for both of its sides.

A channel is a connection on which both sides have proved themselves, and whose bytes are sealed
(`peer_authentication.py`). A frame is a kind (one byte), the size of the payload and the number of the call (four bytes
each, big endian), and the payload. The asking side (`peer_channel.py`) writes

- `q`, a call, with the first 64 KiB of its body; `b`, a further piece of the body, and `B`, the last one;
- `c`, which cancels a call; `g`, which lets a call go on; `w`, credit; `p`, which asks for a sign of life.

The answering side (`peer_server.py`) writes

- `n`: the call waits, and is not sent to a server before the asking side has answered `g` to the frame `S`;
- `a`, a whole small answer; or `h`, the head of an answer, `b`, pieces of its body, and `e`, its end;
- `x`: the answer will not be complete;
- `m`: the peer does not serve the session (any more); `r`: it refuses the call;
- `w`, credit; `p`, a heartbeat while there are calls, or the answer to `p`.

Credit keeps a slow reader from blocking others and from filling memory. At most 64 KiB of each body, and of each answer
in pieces, are under way. The reader returns the number of bytes that it has read with `w`.

A call that was sent whole may have taken effect, even if the channel breaks, unless the last frame about it was `n`:
later frames of the answering side may have been lost on the way.

A side that breaks these rules has its channel closed. docs/adr/0041-one-protocol-between-replicas.md has the reasons.
"""

import asyncio
from collections.abc import Callable
from struct import Struct
from time import monotonic
from typing import Final

HEARTBEAT_S: Final = 0.5
"""Seconds between the heartbeats of the answering side while it has calls."""

SMALL_BYTES: Final = 64 << 10
"""Maximum bytes of a body that is sent in the same frame as its call, and of an answer that is sent in one frame."""

CREDIT_BYTES: Final = 64 << 10
"""Maximum bytes of one body, or of one answer in pieces, that may be sent before the reader has read them."""

PIECE_BYTES: Final = 32 << 10
"""Maximum bytes of one piece of a body or an answer: half of the credit, so that one piece is on its way while another
is read."""

MAX_DEFINITION_BYTES: Final = 8 << 10
"""Maximum bytes of a definition (facts that several calls share) that the answering side stores."""

MAX_HEAD_BYTES: Final = 1 << 20
"""Maximum bytes of a call without its body. These are its headers, and the claims of its sender's credential."""

MAX_CALLS: Final = 1_024
"""Maximum number of unanswered calls on one channel."""

KEPT: Final = 1_024
"""Maximum number of definitions that the answering side stores for one channel."""

UNKEPT: Final = 0xFFFF
"""The number of a definition that belongs to one call alone, and is not stored."""

LOG_EVERY_S: Final = 60.0
"""The fewest seconds between two log lines about the same fault of peers."""

_BATCH_BYTES: Final = 256 << 10
FRAME: Final = Struct(">cII")
CALL: Final = Struct(">HII?")
"""The beginning of a frame `q`: the number of the definition, the size of the definition (0: it was sent before), the
size of the call's own facts, and 1 if the body goes on. Definition, facts and the first part of the body follow."""

NUMBER: Final = Struct(">I")


class PeerFault(Exception):
    """A peer has broken the rules of the channel."""


class LogLimit:
    """Limit the log lines about one fault, so that a peer cannot fill the log."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def allows(self) -> bool:
        """Return True if a line may be written now. After that, return False for `LOG_EVERY_S` seconds."""
        now = monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + LOG_EVERY_S
        return True


def frame(kind: bytes, number: int = 0, payload: bytes = b"") -> bytes:
    """Return an encoded frame of this kind. `number` is that of the call; 0: it is about no call."""
    return FRAME.pack(kind, len(payload), number) + payload


def credit_after(payload: bytes, credit: int) -> int:
    """Return the credit (the bytes that may be sent) after a frame `w`, by which the other side returns credit.
    `credit` is the credit before it, and `payload` the payload of the frame. Raises `PeerFault` if the frame returns
    more than was used."""
    if len(payload) != NUMBER.size or not 0 < (returned := int.from_bytes(payload, "big")) <= CREDIT_BYTES - credit:
        raise PeerFault("it returns credit that was not used")
    return credit + returned


class Batch:
    """Collect the frames of one turn of the event loop, and write them together at its end."""

    __slots__ = ("_frames", "_loop", "_size", "_write")

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._write = write
        self._frames: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Collect a frame, to be written at the end of this turn of the event loop. Write all frames at once if they
        are large."""
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(data)
        self._size += len(data)
        if self._size >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected frames now."""
        if self._frames:
            data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
            self._frames.clear()
            self._size = 0
            self._write(data)
