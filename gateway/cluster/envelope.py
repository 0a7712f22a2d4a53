"""What a replica says of a request that it forwards, beside the body. An envelope is valid for seconds, and used once.

The connection has proved both replicas, and seals what they send (`transports/sealed_wire.py`).
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
from transports.encrypted_wire import PeerTls
from transports.peer_frames import PeerFault
from transports.sealed_wire import NAME_CHARS

__all__ = [
    "COPIES_S",
    "GREETING",
    "HOLD",
    "CallFacts",
    "Common",
    "Envelopes",
    "Headers",
    "Nonce",
    "Refusal",
    "decode_common",
    "decode_facts",
]

VALID_S: Final = 10.0
"""How long an envelope is valid. The clocks of two replicas may differ by as much, in either direction."""

COPIES_S: Final = 10.0
"""For how long after a request was sent copies of it may be sent to the same replica."""

_NONCE_S: Final = COPIES_S + 2 * VALID_S
"""How long a nonce is remembered at least: until the last copy can no longer be accepted, which a sender whose clock is
ahead has written."""

GREETING: Final = "greeting"
"""The path of a request that only asks a replica to answer. Paths of endpoints begin with a slash."""

HOLD: Final = "hold"
"""The path of a request to take nothing from a replica for a while. Its session is that replica."""

Headers = list[tuple[bytes, bytes]]
Nonce = tuple[Annotated[str, msgspec.Meta(min_length=NAME_CHARS, max_length=NAME_CHARS)], int]
"""Names a call: its channel, and its number there."""


class Refusal(enum.StrEnum):
    """Why a replica refuses an envelope."""

    INVALID = "invalid"
    """Its age or its content is wrong."""
    SEEN = "seen"
    """A copy of it was accepted."""


class Common(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the calls with one head of one connection have in common. `path` is that of an endpoint, `granted` has the
    claims of the client's credential. `again`: a lost process has had the request, which may have taken effect."""

    session: str
    path: str
    issuer: str = ""
    subject: str = ""
    method: str = "POST"
    secure: bool = False
    again: bool = False
    headers: Headers = []
    granted: CredentialClaims | None = None

    @classmethod
    def of(
        cls, route: Route, path: str, headers: Headers, *, secure: bool, method: str = "POST", again: bool = False
    ) -> "Common":
        """What requests to that path with these headers have in common."""
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
        """For the owner."""
        return _encode(self)


class CallFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a call has of its own. `epoch` and `version` are those of the session's record as the sender has read it, -1
    if it has not for this call. `traceparent` is empty if the client has sent none. `expires` is in seconds since the
    epoch of Unix. `copy_of`: an earlier one that may have arrived; one of the two is executed."""

    epoch: int
    version: int
    correlation: str
    traceparent: str
    expires: float
    copy_of: Nonce | None = None


_encode = msgspec.msgpack.Encoder().encode
_commons = msgspec.msgpack.Decoder(Common)
_facts = msgspec.msgpack.Decoder(CallFacts)


def decode_common(packed: bytes) -> Common:
    """What a peer has packed. Raises `PeerFault`: it cannot be read."""
    try:
        return _commons.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise PeerFault("what calls have in common cannot be read") from None


def decode_facts(packed: bytes) -> CallFacts:
    """The facts of a call. Raises `PeerFault`: they cannot be read."""
    try:
        return _facts.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise PeerFault("the facts of a call cannot be read") from None


class Envelopes:
    """Writes the facts of calls, and remembers which calls were accepted. `peer_keys` prove that a process is a
    replica, newest first, and `tls` encrypts what replicas send, if it is set."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float] = time.time, tls: PeerTls | None = None) -> None:
        self.tls = tls
        self.peer_keys = ring.derive(Purpose.PEER)
        self._clock = clock
        # Of each channel, up to which number its calls were accepted, and the nonces of copies: in two generations, of
        # which the older one is dropped whole when all of its envelopes have expired.
        self._last: dict[str, int] = {}
        self._last_before: dict[str, int] = {}
        self._copied: set[Nonce] = set()
        self._copied_before: set[Nonce] = set()
        self._turns_at = 0.0

    def facts(
        self, route: Route | None, traceparent: str = "", copy_of: Nonce | None = None, correlation: str = ""
    ) -> bytes:
        """The facts of a call that is sent now. `correlation` empty: that of the request that is served."""
        epoch = version = -1
        if route is not None and route.is_read:
            epoch, version = route.session.epoch, route.session.version
        expires = self._clock() + VALID_S
        return _encode(CallFacts(epoch, version, correlation or CORRELATION.get(), traceparent, expires, copy_of))

    def accept(self, nonce: Nonce, facts: CallFacts) -> Refusal | None:
        """Accept a call that has that nonce. Numbers of a channel only rise. Returns why not."""
        now = self._clock()
        # One that is valid for longer than envelopes are may outlive its nonce.
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
