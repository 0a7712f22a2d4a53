"""The envelope a request travels in between replicas: who may do what where, for the next seconds, once."""

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

__all__ = ["GREETING", "Envelope", "Envelopes", "Opened", "Refusal"]

GOOD_FOR_S: Final = 10.0
_MAC_BYTES: Final = 32
_REMEMBERED_S: Final = 2 * GOOD_FOR_S
"""How long a nonce is remembered at least: a copy may be sealed a few seconds after the first."""

GREETING: Final = "greeting"
"""The path of what only asks who answers: no endpoint's, for those begin with a slash."""

Headers = list[tuple[bytes, bytes]]


class Refusal(enum.StrEnum):
    """Why an envelope was not taken."""

    INVALID = "invalid"
    SOMEBODY_ELSE = "somebody else"
    SEEN = "seen"


class Envelope(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`digest` is of headers and body; `version` is that of the session's record as the sender has read it."""

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
    """An envelope whose seal is good, and the headers as they came with it."""

    envelope: Envelope
    packed: bytes


class Envelopes:
    """Seals and opens them: an HMAC under a key of their own (`Purpose.FORWARD`)."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.time) -> None:
        self._keys = [key.encode() if isinstance(key, str) else key for key in ring.derive(Purpose.FORWARD)]
        self._clock = clock
        # Two generations: one is dropped whole when nothing in it can be good any more.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._turns_at = 0.0

    def sealing(
        self,
        target: str,
        route: Route,
        *,
        method: str,
        path: str,
        secure: bool,
        again: bool,
        headers: Headers,
        body: bytes,
    ) -> Callable[[], bytes]:
        """Gives the head of a request, good from when it is called. Whoever takes one of them takes no other."""
        packed = msgspec.msgpack.encode(headers)
        envelope = Envelope(
            target=target,
            session=route.session.id,
            epoch=route.session.epoch,
            version=route.session.version,
            issuer=route.principal.issuer,
            subject=route.principal.subject,
            method=method,
            path=path,
            secure=secure,
            again=again,
            digest=_digest(packed, body),
            nonce=secrets.token_urlsafe(12),
            expires=0.0,
            granted=route.granted,
        )

        return lambda: self._sealed(envelope, packed)

    def greeting(self, target: str) -> bytes:
        """The head of a request that asks a replica whether it is the one: about no session, at no path."""
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
        """What came in one of ours, meant for this replica and fresh. Of what goes with it nothing is known yet."""
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
        """The headers that were sealed, if headers and body are what was sealed and nobody has taken them before."""
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
