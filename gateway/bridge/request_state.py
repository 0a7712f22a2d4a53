"""Encrypt the gateway's `requestState`. It contains the server's own state, and the session to which the client's next
request belongs.

The client has to store nothing else. Each `input_required` result to a client has the gateway's state (MCP 2026-07-28,
Multi Round-Trip Requests). The server gets its own state back byte for byte; none if it has sent none."""

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gateway.bridge.state_cipher import InvalidSeal, StateCipher
from gateway.calls.suspended_call import SuspendedCall
from gateway.errors import bad_request_state
from gateway.protocol.methods import METHODS
from session_store import KeyRing, Principal, Purpose
from session_store.token_signing import is_canonical
from transports.jsonrpc import Object, decode_exact, encode

STATE_TTL_S: Final = 600.0
"""Seconds that a state is valid: long enough for a person to fill in a form."""


class OpenedState(msgspec.Struct, frozen=True, kw_only=True):
    """The decrypted contents of the gateway's `requestState`."""

    session: str
    """The id of the session to which the client's next request belongs."""
    endpoint: str
    issuer: str
    subject: str
    digest: str
    """Endpoint, issuer, subject and digest are those of the `Binding`: the state is valid for no other request."""
    expires: float
    """In seconds since 1970."""
    inner: str | None
    """The server's own state as JSON; None if the server has sent none."""
    call: str = ""
    """The name of the suspended call; empty if no call is suspended."""
    turn: int = 0
    """The round of the suspended call's questions."""
    asked: dict[str, str] = {}
    """The digests of the call's questions, by key."""
    answers: dict[str, str] = {}
    """The client's earlier answers, by the digest of the question."""


class Binding(msgspec.Struct, frozen=True):
    """The principal, endpoint and request for which a state is valid."""

    principal: Principal
    endpoint: str
    digest: Callable[[], str]
    """Computes the digest of the request when it is called, because few calls need the digest."""


class RequestDigest(msgspec.Struct):
    """Compute the digest of one request: of its method, its tool, prompt or URI, and its arguments. An instance is
    called to get the digest. The first call computes it; after that, only the digest is kept in memory, and not the
    request."""

    method: str
    params: Object | None
    digest: str = ""

    def __call__(self) -> str:
        if self.params is not None:
            # The order of keys in the arguments does not matter.
            target = self.params.get(METHODS[self.method].named, b"null")
            arguments = decode_exact(self.params.get("arguments", b"null"))
            canonical = (
                self.method.encode() + b"\0" + bytes(target) + b"\0" + msgspec.json.encode(arguments, order="sorted")
            )
            self.digest, self.params = hashlib.sha256(canonical).hexdigest()[:32], None
        return self.digest


class RequestStateSeal:
    """Seal states (encrypt and authenticate them) and open them. A state expires, and is bound to a principal, an
    endpoint and a request."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float]) -> None:
        self._cipher = StateCipher(ring.derive(Purpose.REQUEST_STATE))
        self._clock = clock

    def seal(
        self,
        result: Object,
        *,
        session_id: str,
        binding: Binding,
        suspended: SuspendedCall | None = None,
    ) -> Object:
        """Return `result`, an `input_required` result, with the gateway's encrypted state in place of the server's. The
        gateway's state contains the server's, and is valid for `binding` only. `suspended` has the open questions if
        the call waits at its server; None if no call waits."""
        inner = result.get("requestState")
        payload = OpenedState(
            session=session_id,
            endpoint=binding.endpoint,
            issuer=binding.principal.issuer,
            subject=binding.principal.subject,
            digest=binding.digest(),
            expires=self._clock() + STATE_TTL_S,
            inner=None if inner is None else bytes(inner).decode(),
            **({} if suspended is None else _of_call(suspended)),
        )
        return result | {"requestState": msgspec.Raw(encode(self._cipher.seal(encode(payload))))}

    def open(self, raw: msgspec.Raw, binding: Binding) -> OpenedState:
        """Decrypt a state that `seal` has made, and return its contents.

        Raises:
            Refused: the state is forged or expired, or belongs to another principal, endpoint or request. The client
                cannot tell these cases apart.
        """
        try:
            sealed = msgspec.json.decode(raw, type=str)
            if not is_canonical(sealed):
                raise bad_request_state()
            state = msgspec.json.decode(self._cipher.open(sealed), type=OpenedState)
        except (InvalidSeal, msgspec.MsgspecError, ValueError):
            raise bad_request_state() from None
        principal = Principal(issuer=state.issuer, subject=state.subject)
        is_here = principal == binding.principal and state.endpoint == binding.endpoint
        if not is_here or self._clock() >= state.expires or state.digest != binding.digest():
            raise bad_request_state()
        return state


def _of_call(suspended: SuspendedCall) -> dict[str, Any]:
    return {"call": suspended.call, "turn": suspended.turn, "asked": suspended.asked(), "answers": suspended.answers}


def is_input_required(result: Object) -> bool:
    return bytes(result.get("resultType", b"")) == b'"input_required"'


def with_inner_state(params: Object, opened: OpenedState) -> Object:
    """Return the params of a client's repeated call as the server gets them: with the server's own state in place of
    the gateway's, or without a state if the server has sent none."""
    rest = {key: value for key, value in params.items() if key != "requestState"}
    return rest if opened.inner is None else rest | {"requestState": msgspec.Raw(opened.inner.encode())}
