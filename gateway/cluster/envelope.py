"""The envelope of a forwarded request: what the sending replica vouches for, to one replica, for seconds, once."""

import enum
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from gateway.cluster.ownership import Route
from gateway.identity.context_rules import CredentialClaims
from session_store import KeyRing, Purpose

__all__ = ["GREETING", "Envelope", "Envelopes", "ForwardedRequest", "Headers", "Opened", "Refusal"]

GOOD_FOR_S: Final = 10.0
_MAC_BYTES: Final = 32
_REMEMBERED_S: Final = 2 * GOOD_FOR_S
"""How long a nonce is kept at least: a copy may be sealed a few seconds after the first."""

GREETING: Final = "greeting"
"""The path of a request that only asks which replica answers. Paths of endpoints begin with a slash."""

Headers = list[tuple[bytes, bytes]]


class Refusal(enum.StrEnum):
    """Why a replica refuses an envelope."""

    INVALID = "invalid"
    """Its seal, its age or its content is wrong."""
    SOMEBODY_ELSE = "somebody else"
    """It is for another replica."""
    SEEN = "seen"
    """A copy of it has been taken."""


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it is forwarded: for which session, and what the client has sent. `path` is that of an endpoint.

    `again`: the request was given to a process that was lost, and may have taken effect.
    """

    route: Route
    method: str
    path: str
    secure: bool
    again: bool
    headers: Headers
    body: bytes


class Envelope(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is sealed. `digest` is of headers and body, `version` that of the session's record as the sender has read
    it, `expires` seconds since the epoch."""

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
        self._keys = [key.encode() if isinstance(key, str) else key for key in ring.derive(Purpose.FORWARD)]
        self._clock = clock
        # Nonces, in two generations: the older one is dropped whole when all of its envelopes have expired.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._turns_at = 0.0

    def sealing(self, target: str, request: ForwardedRequest, traced: Headers) -> Callable[[], bytes]:
        """Gives the sealed head of a request for the replica `target`, valid from the time of each call. Of all heads
        that one of these functions gives, the target takes one. `traced` are headers of this attempt."""
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
        """The sealed head of a request that asks whether the replica `target` answers. About no session."""
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
        data = msgspec.msgpack.encode(msgspec.structs.replace(envelope, expires=self._clock() + GOOD_FOR_S))
        mac = hmac.digest(self._keys[0], data, "sha256")
        return b"".join((mac, len(data).to_bytes(4, "big"), data, packed))

    def open(self, replica: str, head: bytes) -> Opened | Refusal:
        """The envelope in a head, if a replica of this store has sealed it, for `replica`, and it is fresh. Headers and
        body are not verified yet: `take` does that."""
        size = int.from_bytes(head[_MAC_BYTES : _MAC_BYTES + 4], "big")
        data, packed = head[_MAC_BYTES + 4 :][:size], head[_MAC_BYTES + 4 + size :]
        macs = (hmac.digest(key, data, "sha256") for key in self._keys)
        if not any(hmac.compare_digest(mac, head[:_MAC_BYTES]) for mac in macs):
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
            self._seen, self._seen_before, self._turns_at = set(), self._seen, now + _REMEMBERED_S
        if envelope.nonce in self._seen or envelope.nonce in self._seen_before:
            return Refusal.SEEN
        self._seen.add(envelope.nonce)
        return headers


def _digest(headers: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(headers, digest_size=16).digest()).digest()
