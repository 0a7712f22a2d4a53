"""Define the envelope of a forwarded request: the facts that one replica sends to another beside the body.

It is valid for some seconds, and accepted once. The connection authenticates both replicas and protects their frames
(`transports/peer_authentication.py`).
"""

import enum
import time
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from gateway.cluster.ownership import Route
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.logs import CORRELATION
from session_store import KeyRing, Purpose
from transports.inbound_port import HeaderList
from transports.peer_authentication import NAME_CHARS
from transports.peer_frames import PeerFault
from transports.peer_tls import PeerTls

VALID_S: Final = 10.0
"""Lifetime of an envelope. The clocks of two replicas may differ by as much, in either direction."""

COPIES_S: Final = 10.0
"""Time after the first send in which copies of a request may be sent to the same replica."""

_NONCE_S: Final = COPIES_S + 2 * VALID_S
"""Least time for which a nonce is remembered. After it no copy is valid, even of a sender whose clock is ahead."""

GREETING: Final = "greeting"
"""The path of a request that only checks that a replica answers. Paths of endpoints begin with a slash."""

HOLD: Final = "hold"
"""The path of a request to claim no session of a replica for a while. `SharedFacts.session` then names that replica."""

JSON_TYPE: Final = (b"content-type", b"application/json")
"""The header of an answer that is one JSON message."""

Nonce = tuple[Annotated[str, msgspec.Meta(min_length=NAME_CHARS, max_length=NAME_CHARS)], int]
"""The name of a call: its channel (connection), and its number there."""


class Refusal(enum.StrEnum):
    """The reason for which a replica refuses an envelope."""

    INVALID = "invalid"
    """Its age or its content is wrong."""
    SEEN = "seen"
    """A copy of it was accepted."""


class SharedFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Facts that all calls with one HTTP head on one connection share. `path` is the path of an endpoint. `granted` has
    the claims of the client's credential. `again`: a lost process had the request, which may have taken effect."""

    session: str
    path: str
    issuer: str = ""
    subject: str = ""
    method: str = "POST"
    secure: bool = False
    again: bool = False
    headers: HeaderList = []
    granted: CredentialClaims | None = None

    @classmethod
    def of(
        cls, route: Route, path: str, headers: HeaderList, *, secure: bool, method: str = "POST", again: bool = False
    ) -> "SharedFacts":
        """Return the shared facts of requests to that path with these headers, in the session of `route`."""
        return cls(
            session=route.session.id,
            path=path,
            issuer=route.principal.issuer,
            subject=route.principal.subject,
            method=method,
            secure=secure,
            again=again,
            headers=headers,
            granted=route.granted,
        )

    def packed(self) -> bytes:
        """Return the facts as msgpack, as the session's owner reads them."""
        return _encode(self)


class CallFacts(msgspec.Struct, frozen=True, array_like=True):
    """Facts of one call. `epoch` and `version` are from the session's record as the sender has read it; -1 if it did
    not read the record for this call. `traceparent` is empty if the client sent none. `expires` is Unix time in
    seconds. `copy_of` names an earlier copy that may have arrived. One of the two is executed."""

    epoch: int
    version: int
    correlation: str
    traceparent: str
    expires: float
    copy_of: Nonce | None = None


_encode = msgspec.msgpack.Encoder().encode
_shared_facts = msgspec.msgpack.Decoder(SharedFacts)
_facts = msgspec.msgpack.Decoder(CallFacts)


def is_event_stream(headers: HeaderList) -> bool:
    """Return True if a response with these headers is an event stream."""
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def decode_shared_facts(packed: bytes) -> SharedFacts:
    """Decode the facts that a peer's calls share. Raises `PeerFault`: they cannot be read."""
    try:
        return _shared_facts.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise PeerFault("what calls have in common cannot be read") from None


def decode_facts(packed: bytes) -> CallFacts:
    """Decode the facts of one call. Raises `PeerFault`: they cannot be read."""
    try:
        return _facts.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise PeerFault("the facts of a call cannot be read") from None


class Envelopes:
    """Write the facts of calls, and remember which calls were accepted. `peer_keys` (newest first) prove that a
    process is a replica. `tls`, if set, encrypts the connections between replicas."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.time, tls: PeerTls | None = None) -> None:
        self.tls = tls
        self.peer_keys = ring.derive(Purpose.PEER)
        self._clock = clock
        # The last accepted number of each channel, and the nonces of copies, both in two generations. The older
        # generation is dropped as a whole when all of its envelopes have expired.
        self._last: dict[str, int] = {}
        self._last_before: dict[str, int] = {}
        self._copied: set[Nonce] = set()
        self._copied_before: set[Nonce] = set()
        self._turns_at = 0.0

    def facts(
        self, route: Route | None, traceparent: str = "", copy_of: Nonce | None = None, correlation: str = ""
    ) -> bytes:
        """Return the facts of a call that is sent now, as msgpack. The default `correlation` is that of the request
        that is served. Epoch and version are -1 unless `route` was just read from the store."""
        epoch = version = -1
        if route is not None and route.is_read:
            epoch, version = route.session.epoch, route.session.version
        expires = self._clock() + VALID_S
        return _encode(CallFacts(epoch, version, correlation or CORRELATION.get(), traceparent, expires, copy_of))

    def accept(self, nonce: Nonce, facts: CallFacts) -> Refusal | None:
        """Accept a call, and return None; or return the reason to refuse it. The numbers of a channel only rise."""
        now = self._clock()
        # An envelope that is valid for longer could be accepted again after its nonce is forgotten.
        if not 0 < facts.expires - now <= 2 * VALID_S:
            return Refusal.INVALID
        if now >= self._turns_at:
            self._turns_at = now + _NONCE_S
            self._copied, self._copied_before = set(), self._copied
            self._last, self._last_before = {}, self._last
        is_new = nonce not in self._copied and nonce not in self._copied_before
        if is_new and facts.copy_of is not None:
            channel, number = facts.copy_of
            last = self._last.get(channel) or self._last_before.get(channel) or 0
            is_new = number > last and facts.copy_of not in self._copied and facts.copy_of not in self._copied_before
            self._copied.add(facts.copy_of)
        channel, number = nonce
        self._last[channel] = number
        return None if is_new else Refusal.SEEN
