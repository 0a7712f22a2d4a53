"""Seals and opens the envelopes of forwarded requests. An envelope is for one replica, valid for seconds, used once."""

import enum
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from gateway.cluster.ownership import Route
from gateway.identity.credential_claims import CredentialClaims
from session_store import KeyRing, Purpose
from session_store.tokens import Macs

__all__ = ["GREETING", "Envelope", "Envelopes", "ForwardedRequest", "Headers", "Opened", "Refusal"]

VALID_S: Final = 10.0
_NONCE_S: Final = 2 * VALID_S
"""How long a nonce is remembered at least: a copy may be sealed some seconds after the first envelope."""

GREETING: Final = "greeting"
"""The path of a request that only asks a replica to answer. Paths of endpoints begin with a slash."""

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


class Opened(NamedTuple):
    """An envelope with a valid seal, and the encoded headers that came with it."""

    envelope: Envelope
    packed: bytes


class Envelopes:
    """Seals and opens envelopes with an HMAC under keys of their own (`Purpose.FORWARD`)."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.time) -> None:
        self._macs = Macs(ring, Purpose.FORWARD)
        self._clock = clock
        # Nonces, in two generations: the older one is dropped whole when all of its envelopes have expired.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._turns_at = 0.0

    def sealing(self, target: str, request: ForwardedRequest, traced: Headers) -> Callable[[], bytes]:
        """A function that seals the head of a request for the replica `target`, valid from the time of its call. The
        target accepts one of the heads that it returns. `traced` are headers of this attempt."""
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
            nonce=secrets.token_urlsafe(12),
            expires=0.0,
            granted=route.granted,
        )

        return lambda: self._sealed(envelope, packed)

    def greeting(self, target: str) -> bytes:
        """The sealed head of a request that only asks the replica `target` to answer."""
        packed = msgspec.msgpack.encode([])
        return self._sealed(
            Envelope(
                target=target,
                session="",
                epoch=0,
                version=0,
                issuer="",
                subject="",
                method="",
                path=GREETING,
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
        if self._clock() >= envelope.expires:
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
        now = self._clock()
        if now >= self._turns_at:
            self._seen, self._seen_before, self._turns_at = set(), self._seen, now + _NONCE_S
        if envelope.nonce in self._seen or envelope.nonce in self._seen_before:
            return Refusal.SEEN
        self._seen.add(envelope.nonce)
        return headers


def _digest(headers: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(headers, digest_size=16).digest()).digest()
