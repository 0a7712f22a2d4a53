"""Authenticate both sides of a connection between replicas of the gateway, and then protect all bytes with message
authentication codes (MACs).

The asking side sends a challenge: a version and a nonce. The other side answers with its own nonce, the name of its
replica and a MAC. Only if this is the wanted replica, the asking side sends its own MAC, and then its calls. Each MAC
is for one side, one pair of nonces and one replica. So no MAC can be reflected, repeated or relayed for another
replica.

After the handshake, all bytes are records: a size (four bytes, big endian), a MAC and the content. Each connection and
direction has its own key, and the records are numbered. If a record was changed, repeated, moved or left out, the
connection is closed. Each answer has a last frame, so a part of an answer is never taken for the whole.
docs/adr/0041-one-protocol-between-replicas.md has the reasons."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from transports.sized_frames import FrameReader, FrameTooLong

_VERSION: Final = b"mcp-peer/2\n"
NAME_CHARS: Final = 32
"""Length of a connection's name."""

_NONCE: Final = 32
_MAC: Final = 32
_SIZE: Final = 4
_CHALLENGE: Final = len(_VERSION) + _NONCE
_NAMED_AT: Final = len(_VERSION) + _NONCE + _MAC
_RECORD_BYTES: Final = 64 << 10
"""The most bytes of one record. Longer content is sent in several."""


class Unproven(Exception):
    """The other side of a connection has not proved that it is the wanted replica. It has got only a challenge."""


class OtherReplica(Unproven):
    """The other side of a connection is a replica on this store, but not the wanted one."""


class OtherKeys(Unproven):
    """The other side speaks the protocol, but with a key that is not in the key ring."""


class _Seal:
    """Number the records of one direction of a connection, and compute their MACs."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next(self, content: bytes) -> bytes:
        """Return the MAC of the next record, which has this content."""
        number = self._number.to_bytes(8, "big")
        self._number += 1
        return hmac.digest(self._key, number + content, "sha256")


class Seals(NamedTuple):
    """What one side of a connection has after the handshake: the MACs of both directions, and a name."""

    sent: _Seal
    """Computes the MACs of the records that this side sends."""
    received: _Seal
    """Computes the MACs that the received records must have."""
    name: str
    """The unique name of the connection, the same on both sides."""


class _Proof:
    """Compute the MACs of one handshake."""

    def __init__(self, key: bytes, asked: bytes, answered: bytes, replica: bytes) -> None:
        self._key = key
        self._facts = asked + answered + replica

    def of(self, role: bytes) -> bytes:
        """Return the MAC for a role. It covers the role's name, a zero byte, and the facts of the handshake."""
        return hmac.digest(self._key, _VERSION + role + b"\0" + self._facts, "sha256")

    def seals(self, *, is_asking: bool) -> Seals:
        asking, answering = _Seal(self.of(b"records of who asks")), _Seal(self.of(b"records of who answers"))
        name = self.of(b"name of the connection")[: NAME_CHARS // 2].hex()
        return Seals(asking, answering, name) if is_asking else Seals(answering, asking, name)


class Asking:
    """Run the handshake of the side that opens the connection, and wants to reach `replica`. `keys` is the key ring,
    newest first."""

    def __init__(self, keys: Sequence[bytes], replica: str) -> None:
        self._keys = keys
        self._replica = replica.encode()
        self._nonce = secrets.token_bytes(_NONCE)

    def begin(self) -> bytes:
        """Return the challenge, to be sent first."""
        return _VERSION + self._nonce

    def step(self, rest: bytearray) -> tuple[bytes, Seals] | bytes:
        """Process the received bytes in `rest`, and remove them. Return the bytes to send; after the last step, also
        the seals.

        Raises:
            Unproven: the proof is wrong, and nothing more may be sent.
        """
        if not rest.startswith(_VERSION[: len(rest)]):
            raise Unproven
        if len(rest) <= _NAMED_AT or len(rest) <= (ends := _NAMED_AT + rest[_NAMED_AT]):
            return b""
        nonce, mac = bytes(rest[len(_VERSION) : _CHALLENGE]), bytes(rest[_CHALLENGE:_NAMED_AT])
        replica = bytes(rest[_NAMED_AT + 1 : ends + 1])
        del rest[: ends + 1]
        for key in self._keys:
            proof = _Proof(key, self._nonce, nonce, replica)
            if hmac.compare_digest(proof.of(b"who answers"), mac):
                break
        else:
            raise OtherKeys
        if replica != self._replica:
            raise OtherReplica
        return proof.of(b"who asks"), proof.seals(is_asking=True)


class Answering:
    """Run the handshake of the side that accepts the connection, as `replica`. The newest key makes its proof."""

    def __init__(self, keys: Sequence[bytes], replica: str) -> None:
        self._key = keys[0]
        self._replica = replica.encode()
        self._proof: _Proof | None = None

    def begin(self) -> bytes:
        """Return no bytes, because the other side sends first."""
        return b""

    def step(self, rest: bytearray) -> tuple[bytes, Seals] | bytes:
        """Process the received bytes in `rest`, and remove them. Return the bytes to send; after the last step, also
        the seals.

        Raises:
            Unproven: the proof is wrong, and nothing more may be sent.
        """
        if self._proof is not None:
            if len(rest) < _MAC:
                return b""
            mac = bytes(rest[:_MAC])
            del rest[:_MAC]
            if not hmac.compare_digest(self._proof.of(b"who asks"), mac):
                raise Unproven
            return b"", self._proof.seals(is_asking=False)
        if len(rest) > _CHALLENGE or not rest.startswith(_VERSION[: len(rest)]):
            raise Unproven  # the asking side waits for the answer before it sends more
        if len(rest) < _CHALLENGE:
            return b""
        asked, answered = bytes(rest[len(_VERSION) :]), secrets.token_bytes(_NONCE)
        rest.clear()
        self._proof = proof = _Proof(self._key, asked, answered, self._replica)
        name = len(self._replica).to_bytes(1, "big") + self._replica
        return b"".join((_VERSION, answered, proof.of(b"who answers"), name))


class Layer(asyncio.Transport, asyncio.Protocol):
    """Base of classes that transform the bytes between an asyncio connection and its protocol. To the connection, such
    an object is a protocol; to the protocol, a transport."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None

    # -- the protocol of the connection

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._protocol.connection_lost(exc)

    # -- the transport of the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Sealed(Layer):
    """Check the MACs of received bytes before a protocol gets them, and add MACs to the bytes that it writes.
    `when_proved` is called with the name of the connection before the protocol gets the first bytes. `failed` is called
    if the handshake or a record is wrong; the connection is then aborted."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        handshake: Asking | Answering,
        *,
        when_proved: Callable[[str], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(protocol)
        self._handshake = handshake
        self._when_proved = when_proved
        self._failed = failed
        self._seals: Seals | None = None
        self._rest = bytearray()
        self._records = FrameReader(_SIZE + _MAC, 0, _RECORD_BYTES)
        self._proved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def proved(self) -> None:
        """Wait until the other side has proved that it is the wanted replica.

        Raises:
            Unproven: the proof is wrong, or the connection is lost.
        """
        await self._proved

    # -- the protocol of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._protocol.connection_made(self)
        if begin := self._handshake.begin():
            self._transport.write(begin)

    def data_received(self, data: bytes) -> None:
        try:
            if self._seals is None:
                data = self._shake(data)
            if self._seals is not None and data:
                self._open(self._seals.received, data)
        except (Unproven, FrameTooLong) as wrong:
            self._settle(wrong if isinstance(wrong, Unproven) else Unproven())
            self._failed()
            self.abort()

    def _shake(self, data: bytes) -> bytes:
        """Continue the handshake with the received bytes `data`. Return those bytes that follow the handshake; empty
        while the handshake goes on."""
        self._rest += data
        step = self._handshake.step(self._rest)
        answer, self._seals = (step, None) if isinstance(step, bytes) else step
        if answer and self._transport is not None:
            self._transport.write(answer)
        if self._seals is None:
            return b""
        self._when_proved(self._seals.name)
        self._settle(None)
        rest, self._rest = bytes(self._rest), bytearray()
        return rest

    def _settle(self, wrong: Unproven | None) -> None:
        """End the wait in `proved`, with the error `wrong` if there is one. Do nothing if no task waits: the answering
        side never does, and a caller may have been cancelled."""
        if self._proved.done():
            return
        if wrong is None:
            self._proved.set_result(None)
        else:
            self._proved.set_exception(wrong)
            self._proved.exception()  # else asyncio logs an exception that nobody has read

    def _open(self, seal: _Seal, data: bytes) -> None:
        for head, content in self._records.feed(data):
            if not hmac.compare_digest(seal.next(content), head[_SIZE:]):
                raise Unproven
            if self._transport is None or self._transport.is_closing():
                return
            self._protocol.data_received(content)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(Unproven())
        super().connection_lost(exc)

    # -- the transport of the protocol

    def write(self, data: Any) -> None:
        if self._transport is None:
            return
        if self._seals is None:
            raise RuntimeError("nothing is sent before the handshake")
        seal = self._seals.sent
        records: list[bytes] = []
        for at in range(0, len(data), _RECORD_BYTES):
            content = data if len(data) <= _RECORD_BYTES else data[at : at + _RECORD_BYTES]
            records += (len(content).to_bytes(_SIZE, "big"), seal.next(content), content)
        self._transport.write(b"".join(records))
