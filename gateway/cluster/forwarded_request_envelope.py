"""Define the envelope of a forwarded request: the facts that one replica sends to another beside the body.

An envelope is valid for some seconds, and accepted once. The connection authenticates both replicas and protects their
frames (`transports/peer_authentication.py`).
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
from transports.jsonrpc import UNREADABLE
from transports.peer_authentication import NAME_CHARS
from transports.peer_frames import PeerFault
from transports.peer_tls import PeerTls

VALID_S: Final = 10.0
"""Lifetime of an envelope in seconds. The clocks of two replicas may differ by as much, in either direction."""

COPIES_S: Final = 10.0
"""Seconds after a request is first sent, in which copies of it may be sent to the same replica."""

_NONCE_S: Final = COPIES_S + 2 * VALID_S
"""Seconds for which a nonce is remembered at least. Later no copy is valid, even if its sender's clock is ahead."""

GREETING: Final = "greeting"
"""The path of a request that only checks that a replica answers. It has no slash, unlike paths of endpoints."""

HOLD: Final = "hold"
"""The path of a request by which a replica asks a peer to claim none of its sessions for a while. Then
`SharedFacts.session` has the name of the asking replica."""

CLAIM: Final = "claim"
"""The path of a request to claim a session that the asking replica may not claim. The asked replica claims it unless it
reaches the session's owner. `SharedFacts.session` has the session's id."""

JSON_TYPE: Final = (b"content-type", b"application/json")
"""The header of an answer that is one JSON message."""

Nonce = tuple[Annotated[str, msgspec.Meta(min_length=NAME_CHARS, max_length=NAME_CHARS)], int]
"""The unique id of a call: the name of its channel (connection), and its number on that channel."""


class Refusal(enum.StrEnum):
    """The reason why a replica refuses an envelope, or the claim that the envelope asks for."""

    INVALID = "invalid"
    """The envelope's age or content is wrong."""
    SEEN = "seen"
    """A copy of the envelope was accepted before."""
    OWNED = "owned"
    """The replica that was asked to claim a session reaches the session's owner."""


class SharedFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The facts that all calls with the same HTTP head on one connection share. Each call sends them to the owner, or
    refers to those that an earlier call has sent."""

    session: str
    """The id of the session. For the path `HOLD`, the name of the asking replica."""
    path: str
    """The path of an endpoint; or `GREETING`, `HOLD` or `CLAIM`."""
    issuer: str = ""
    subject: str = ""
    """Issuer and subject identify the principal."""
    method: str = "POST"
    secure: bool = False
    """The client's request has come by HTTPS."""
    again: bool = False
    """The request was sent before, to a process that was lost, and may have taken effect."""
    headers: HeaderList = []
    granted: CredentialClaims | None = None
    """The claims of the client's credential."""

    @classmethod
    def of(
        cls, route: Route, path: str, headers: HeaderList, *, secure: bool, method: str = "POST", again: bool = False
    ) -> "SharedFacts":
        """Return the shared facts of requests to `path` with `headers`, in the session of `route`."""
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
        """Encode the facts as msgpack, for the session's owner."""
        return _encode(self)


class CallFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts of one forwarded call that it does not share with other calls. They are sent to the owner beside the
    body."""

    epoch: int
    version: int
    """Epoch and version are those of the session's record; -1 if the sender did not read the record for this call."""
    correlation: str
    traceparent: str
    """Empty if the client has sent none."""
    expires: float
    """Unix time in seconds after which the receiver refuses the call."""
    copy_of: Nonce | None = None
    """The nonce of an earlier copy of this call that may have arrived: the receiver executes only one of the two."""


_encode = msgspec.msgpack.Encoder().encode
_shared_facts = msgspec.msgpack.Decoder(SharedFacts)
_facts = msgspec.msgpack.Decoder(CallFacts)


def is_event_stream(headers: HeaderList) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def decode_shared_facts(packed: bytes) -> SharedFacts:
    """Decode the facts that a peer's calls share. Raises `PeerFault` if the bytes are invalid."""
    try:
        return _shared_facts.decode(packed)
    except UNREADABLE:
        raise PeerFault("what calls have in common cannot be read") from None


def decode_facts(packed: bytes) -> CallFacts:
    """Decode the facts of one call. Raises `PeerFault` if the bytes are invalid."""
    try:
        return _facts.decode(packed)
    except UNREADABLE:
        raise PeerFault("the facts of a call cannot be read") from None


class Envelopes:
    """Encode the facts of calls that are sent, and accept each received call only once."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.time, tls: PeerTls | None = None) -> None:
        self.tls = tls
        """Encrypts the connections between replicas; None if they are not encrypted."""
        self.peer_keys = ring.derive(Purpose.PEER)
        """The keys, newest first, by which a process proves that it is a replica."""
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
        """Return the facts (`CallFacts`) of a call that is sent now, as msgpack. `copy_of` is the nonce of an earlier
        copy of the call. `correlation` defaults to the correlation id of the current request. Epoch and version are -1
        unless the record in `route` was just read from the store."""
        epoch = version = -1
        if route is not None and route.is_read:
            epoch, version = route.session.epoch, route.session.version
        expires = self._clock() + VALID_S
        return _encode(CallFacts(epoch, version, correlation or CORRELATION.get(), traceparent, expires, copy_of))

    def accept(self, nonce: Nonce, facts: CallFacts) -> Refusal | None:
        """Decide if a received call may be executed, and remember its nonce (unique id). Return None if the call has
        come in time and no copy of it was accepted; otherwise return the reason to refuse it."""
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
