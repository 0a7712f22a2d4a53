"""The frames of the channel between two replicas: what both of its sides know.

A channel is a connection that both sides have proved, and whose bytes are sealed (`sealed_wire.py`). Both write frames:
a kind (one byte), the size of the payload and the number of the call (four bytes each, big endian), the payload. The
asking side (`peer_channel.py`) writes

- `q`, a call, with the first 64 KiB of its body; `b`, a further piece of the body, and `B`, the last one;
- `c`, which cancels a call; `g`, which lets one go on; `w`, credit; `p`, which asks for a sign of life.

The answering side (`peer_server.py`) writes

- `n`: the call waits, and is not sent to a server before the asking side has answered `g` to the frame `S`;
- `a`, a whole small answer; or `h`, the head of one, `b`, pieces of its body, and `e`, its end; `x`: it has no end;
- `m`: the peer does not serve the session (any more); `r`: it refuses the call;
- `w`, credit; `p`, a heartbeat while there are calls, or the answer to `p`.

Credit keeps a slow reader from holding up others, and from filling memory: of each body, and of each answer in pieces,
64 KiB are under way at most. Who has read some of them returns as much with `w`.

A call that went out whole may have taken effect, whatever becomes of the channel, unless the last word about it was
`n`: what the answering side has written may be lost on the way, in something between the two that dies.

What breaks these rules ends the channel. docs/adr/0041-one-protocol-between-replicas.md has the reasons.
"""

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Final

__all__ = [
    "CALL",
    "CREDIT_BYTES",
    "FRAME",
    "HEARTBEAT_S",
    "KEPT",
    "MAX_CALLS",
    "MAX_DEFINITION_BYTES",
    "MAX_HEAD_BYTES",
    "NUMBER",
    "PIECE_BYTES",
    "SMALL_BYTES",
    "UNKEPT",
    "Batch",
    "PeerFault",
    "credit_after",
    "frame",
]

HEARTBEAT_S: Final = 0.5
"""How often the answering side sends a heartbeat while it has calls."""

SMALL_BYTES: Final = 64 << 10
"""The most bytes of a body that is sent with its call, and of an answer in one frame."""

CREDIT_BYTES: Final = 64 << 10
"""The most bytes of one body, or of one answer in pieces, that were sent and not read yet."""

PIECE_BYTES: Final = 32 << 10
"""The most bytes of a piece: half of the credit, so that one is on its way while another is read."""

MAX_DEFINITION_BYTES: Final = 8 << 10
"""The most bytes of what calls have in common, if the answering side keeps it."""

MAX_HEAD_BYTES: Final = 1 << 20
"""The most bytes of what a call has beside its body: headers, claims of a credential."""

MAX_CALLS: Final = 1_024
"""The most calls of one channel that have no answer."""

KEPT: Final = 1_024
"""How many definitions the answering side keeps for one channel."""

UNKEPT: Final = 0xFFFF
"""In place of the number of a definition: it is for this call alone."""

_BATCH_BYTES: Final = 256 << 10
FRAME: Final = Struct(">cII")
CALL: Final = Struct(">HII?")
"""The beginning of a frame `q`: the number of the definition, the sizes of the definition (0: it was sent before) and
of the call's own facts, and whether the body goes on. Definition, facts and the begin of the body follow."""

NUMBER: Final = Struct(">I")


class PeerFault(Exception):
    """What a peer has sent breaks the rules of the channel."""


def frame(kind: bytes, number: int = 0, payload: bytes = b"") -> bytes:
    """One frame. The number 0 is no call's."""
    return FRAME.pack(kind, len(payload), number) + payload


def credit_after(payload: bytes, credit: int) -> int:
    """The credit after a frame `w`. Raises `PeerFault`: it returns what was not used."""
    if len(payload) != NUMBER.size or not 0 < (returned := int.from_bytes(payload, "big")) <= CREDIT_BYTES - credit:
        raise PeerFault("it returns credit that was not used")
    return credit + returned


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
