"""Seals and opens the envelopes of forwarded requests. An envelope is for one replica, valid for seconds, used once."""

import enum
import hashlib
import secrets
import time
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from gateway.cluster.ownership import Route
from gateway.identity.credential_claims import CredentialClaims
from session_store import KeyRing, Purpose
from session_store.tokens import Macs
from transports.replica_wire import PeerTls
from transports.replica_wire_server import BODY_WITHIN_S

__all__ = [
    "CHANNEL",
    "COPIES_S",
    "GREETING",
    "HOLD",
    "RECORD_MAC_BYTES",
    "TICKET",
    "CallFacts",
    "Common",
    "Envelope",
    "Envelopes",
    "ForwardedRequest",
    "Headers",
    "Opened",
    "Refusal",
    "common_of",
]

VALID_S: Final = 10.0
"""How long a seal is valid. The clocks of two replicas may differ by as much, in either direction."""

COPIES_S: Final = 10.0
"""For how long after a request was sent copies of it may be sent to the same replica."""

_NONCE_S: Final = COPIES_S + 2 * VALID_S + BODY_WITHIN_S
"""How long a nonce is remembered at least: until the last copy can no longer be accepted, which a sender whose clock is
ahead has sealed, and whose body was held up on the way."""

GREETING: Final = "greeting"
"""The path of a request that only asks a replica to answer. Paths of endpoints begin with a slash."""

CHANNEL: Final = "channel"
"""The path of a request to use its connection as a channel (`transports/peer_channel.py`)."""

HOLD: Final = "hold"
"""The path of a request to take nothing from a replica for a while. Its session is that replica."""

TICKET: Final = "ticket"
"""The path of a request for an answer that has begun on a channel. Its session is the ticket."""

_EXPIRES: Final = Struct(">d")
RECORD_MAC_BYTES: Final = _EXPIRES.size + Macs.SIZE
"""Bytes of the seal of a channel's record."""

Headers = list[tuple[bytes, bytes]]


class Refusal(enum.StrEnum):
    """Why a replica refuses an envelope."""

    INVALID = "invalid"
    """Its seal, its age or its content is wrong."""
    SOMEBODY_ELSE = "somebody else"
    """It is for another replica."""
    SEEN = "seen"
    """A copy of it was accepted."""


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request and its route. `path` is that of an endpoint.

    `again`: a lost process has had the request, which may have taken effect.
    """

    route: Route
    method: str
    path: str
    secure: bool
    again: bool
    headers: Headers
    body: bytes


class Envelope(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The sealed facts of a forwarded request.

    `epoch` and `version` are those of the session's record as the sender has read it. `digest` covers headers and body.
    `expires` is in seconds since the epoch. `granted` has the claims of the client's credential.
    """

    target: str
    session: str
    epoch: int
    version: int
    issuer: str
    subject: str
    method: str
    path: str
    secure: bool
    again: bool
    digest: bytes
    nonce: str
    expires: float
    granted: CredentialClaims | None = None


class Common(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the calls with one head of one connection have in common. The record that has it is sealed. The fields are
    those of `Envelope`."""

    session: str
    issuer: str
    subject: str
    path: str
    secure: bool
    headers: Headers
    granted: CredentialClaims | None = None


def common_of(route: Route, path: str, headers: Headers, *, secure: bool) -> bytes:
    """What requests to that path with these headers have in common, encoded."""
    common = Common(
        session=route.session.id,
        issuer=route.principal.issuer,
        subject=route.principal.subject,
        path=path,
        secure=secure,
        headers=headers,
        granted=route.granted,
    )
    return msgspec.msgpack.encode(common)


class CallFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a call on a channel has of its own. `epoch` and `version` are -1 if the sender has not read the session's
    record for this call. `traceparent` is empty if the client has sent none."""

    epoch: int
    version: int
    correlation: str
    traceparent: str


class Opened(NamedTuple):
    """An envelope with a valid seal, and the encoded headers that came with it."""

    envelope: Envelope
    packed: bytes


class Envelopes:
    """Seals and opens envelopes with an HMAC under keys of their own (`Purpose.FORWARD`). `peer_keys` prove that a
    process is a replica, newest first, and `tls` encrypts what replicas send, if it is set."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.time, tls: PeerTls | None = None) -> None:
        self.tls = tls
        self._macs = Macs(ring, Purpose.FORWARD)
        self.peer_keys = ring.derive(Purpose.PEER)
        self._clock = clock
        # Nonces, in two generations: the older one is dropped whole when all of its envelopes have expired.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        # Of each channel, up to which number its calls were accepted.
        self._last: dict[str, int] = {}
        self._last_before: dict[str, int] = {}
        self._turns_at = 0.0

    def sealing(self, target: str, request: ForwardedRequest, traced: Headers, nonce: str = "") -> Callable[[], bytes]:
        """A function that seals the head of a request for the replica `target`, valid from the time of its call. The
        target accepts one of the heads that it returns. `traced` are headers of this attempt. `nonce` is that of a copy
        that was sent already."""
        packed = msgspec.msgpack.encode([*request.headers, *traced])
        route = request.route
        envelope = Envelope(
            target=target,
            session=route.session.id,
            epoch=route.session.epoch,
            version=route.session.version,
            issuer=route.principal.issuer,
            subject=route.principal.subject,
            method=request.method,
            path=request.path,
            secure=request.secure,
            again=request.again,
            digest=_digest(packed, request.body),
            nonce=nonce or secrets.token_urlsafe(12),
            expires=0.0,
            granted=route.granted,
        )

        return lambda: self._sealed(envelope, packed)

    def greeting(self, target: str) -> bytes:
        """The sealed head of a request that only asks the replica `target` to answer."""
        return self._bare(target, GREETING)

    def hold(self, target: str, replica: str) -> bytes:
        """The sealed head of a request to take nothing from `replica` for a while."""
        return self._bare(target, HOLD, replica)

    def opening(self, target: str, name: str) -> bytes:
        """The sealed head of a request to use its connection as a channel. `name` is this side's part of its name."""
        return self._bare(target, CHANNEL, name)

    def ticket(self, target: str, ticket: str) -> bytes:
        """The sealed head of a request for an answer that has begun on a channel."""
        return self._bare(target, TICKET, ticket)

    def _bare(self, target: str, path: str, session: str = "") -> bytes:
        packed = msgspec.msgpack.encode([])
        return self._sealed(
            Envelope(
                target=target,
                session=session,
                epoch=0,
                version=0,
                issuer="",
                subject="",
                method="",
                path=path,
                secure=False,
                again=False,
                digest=_digest(packed, b""),
                nonce=secrets.token_urlsafe(12),
                expires=0.0,
            ),
            packed,
        )

    def _sealed(self, envelope: Envelope, packed: bytes) -> bytes:
        data = msgspec.msgpack.encode(msgspec.structs.replace(envelope, expires=self._clock() + VALID_S))
        return b"".join((self._macs.of(data), len(data).to_bytes(4, "big"), data, packed))

    def open(self, replica: str, head: bytes) -> Opened | Refusal:
        """The envelope in a head, if a replica of this store has sealed it, for `replica`, and it is fresh. Headers and
        body are not verified yet: `take` does that."""
        size = int.from_bytes(head[Macs.SIZE : Macs.SIZE + 4], "big")
        data, packed = head[Macs.SIZE + 4 :][:size], head[Macs.SIZE + 4 + size :]
        if not self._macs.verify(data, head[: Macs.SIZE]):
            return Refusal.INVALID
        try:
            envelope = msgspec.msgpack.decode(data, type=Envelope)
        except msgspec.MsgspecError:
            return Refusal.INVALID
        if not self._is_fresh(envelope.expires):
            return Refusal.INVALID
        return Opened(envelope, packed) if envelope.target == replica else Refusal.SOMEBODY_ELSE

    def take(self, opened: Opened, body: bytes) -> Headers | Refusal:
        """The headers, if headers and body are those that were sealed, and the envelope was not used before."""
        envelope = opened.envelope
        if _digest(opened.packed, body) != envelope.digest:
            return Refusal.INVALID
        try:
            headers = msgspec.msgpack.decode(opened.packed, type=Headers)
        except msgspec.MsgspecError:
            return Refusal.INVALID
        return headers if self.use(envelope.nonce) else Refusal.SEEN

    def use(self, nonce: str) -> bool:
        """Use a nonce. False if it was used before."""
        self._turn()
        channel, _, number = nonce.rpartition(".")
        last = self._last.get(channel) or self._last_before.get(channel) or 0
        if nonce in self._seen or nonce in self._seen_before or (last and int(number) <= last):
            return False
        self._seen.add(nonce)
        return True

    def use_number(self, channel: str, number: int) -> bool:
        """As `use`, for a call of a channel, where each number is higher than the one before. Its copies elsewhere have
        the nonce `channel.number`."""
        self._turn()
        nonce = f"{channel}.{number}"
        if nonce in self._seen or nonce in self._seen_before:
            return False
        self._last[channel] = number
        return True

    def _turn(self) -> None:
        now = self._clock()
        if now >= self._turns_at:
            self._turns_at = now + _NONCE_S
            self._seen, self._seen_before = set(), self._seen
            self._last, self._last_before = {}, self._last

    # -- channels

    def seal_record(self, channel: str, number: int, content: bytes) -> bytes:
        """The seal of a record of that channel, in whose name both sides have a random part."""
        expires = _EXPIRES.pack(self._clock() + VALID_S)
        return expires + self._macs.of(_record(channel, number, expires, content))

    def verify_record(self, channel: str, number: int, content: bytes, seal: bytes) -> bool:
        """Whether this is the record of that number, and fresh."""
        expires, mac = seal[: _EXPIRES.size], seal[_EXPIRES.size :]
        if len(seal) != RECORD_MAC_BYTES or not self._macs.verify(_record(channel, number, expires, content), mac):
            return False
        [until] = _EXPIRES.unpack(expires)
        return self._is_fresh(until)

    def _is_fresh(self, expires: float) -> bool:
        """Whether a seal is valid now. One that is valid for longer than seals are may outlive its nonce."""
        return bool(0 < expires - self._clock() <= 2 * VALID_S)


def _record(channel: str, number: int, expires: bytes, content: bytes) -> bytes:
    # No envelope begins like this: it is an array of msgpack.
    return b"".join((b"channel ", channel.encode(), number.to_bytes(8, "big"), expires, content))


def _digest(headers: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(headers, digest_size=16).digest()).digest()
