"""`requestState` of ours around the server's: a retry finds its session and process though the client keeps nothing.

MCP 2026-07-28, Multi Round-Trip Requests. Every `input_required` that leaves us carries our sealed state; the server
gets its own back byte for byte, and none if it sent none.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState

from gateway.calls.questions import SuspendedCall
from gateway.errors import bad_request_state
from gateway.protocol.methods import METHODS
from session_store import KeyRing, Principal, Purpose
from session_store.tokens import is_canonical
from transports.jsonrpc import Object, encode

__all__ = ["Binding", "OpenedState", "RequestDigest", "RequestStateSeal"]

STATE_TTL_S: Final = 600.0
"""Long enough for a person to fill in a form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedState:
    """What a retry brings back. `inner` is the server's own state as raw JSON, None when it sent none.

    `call` and `turn` name a parked call and its round; `asked` has the digests of its questions by key, `answers` what
    was answered before, by digest.
    """

    session_id: str
    inner: msgspec.Raw | None
    call: str = ""
    turn: int = 0
    asked: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)


class Binding(NamedTuple):
    """What a state is good for: one principal, at one endpoint, for one request. `digest` is worked out for the few
    calls that ask something."""

    principal: Principal
    endpoint: str
    digest: Callable[[], str]


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    endpoint: str
    issuer: str
    subject: str
    digest: str
    expires: float
    inner: str | None
    call: str = ""
    turn: int = 0
    asked: dict[str, str] = {}
    answers: dict[str, str] = {}


def request_digest(method: str, params: Object) -> str:
    """What a state is bound to: the method and what is asked for, whatever the order of keys."""
    target = params.get(METHODS[method].named, b"null")
    arguments = msgspec.json.decode(params.get("arguments", b"null"))
    canonical = method.encode() + b"\0" + bytes(target) + b"\0" + msgspec.json.encode(arguments, order="sorted")
    return hashlib.sha256(canonical).hexdigest()[:32]


class RequestDigest:
    """`request_digest` of one request, worked out when it is wanted; then the request itself is kept no longer."""

    __slots__ = ("_digest", "_method", "_params")

    def __init__(self, method: str, params: Object) -> None:
        self._digest = ""
        self._method = method
        self._params: Object | None = params

    def __call__(self) -> str:
        if self._params is not None:
            self._digest, self._params = request_digest(self._method, self._params), None
        return self._digest


class RequestStateSeal:
    """Seals and opens states: encrypted, authenticated, bound to principal, endpoint and request, with an expiry."""

    def __init__(self, ring: KeyRing, clock: Callable[[], float]) -> None:
        self._codec = AESGCMRequestStateCodec(ring.derive(Purpose.REQUEST_STATE))
        self._clock = clock

    def seal(
        self,
        result: Object,
        *,
        session_id: str,
        binding: Binding,
        suspended: SuspendedCall | None = None,
    ) -> Object:
        """An `input_required` result with our state in place of the server's."""
        inner = result.get("requestState")
        payload = _Sealed(
            session=session_id,
            endpoint=binding.endpoint,
            issuer=binding.principal.issuer,
            subject=binding.principal.subject,
            digest=binding.digest(),
            expires=self._clock() + STATE_TTL_S,
            inner=None if inner is None else bytes(inner).decode(),
            **({} if suspended is None else _facts(suspended)),
        )
        return result | {"requestState": msgspec.Raw(encode(self._codec.seal(encode(payload))))}

    def open(self, raw: msgspec.Raw, binding: Binding) -> OpenedState:
        """Read back what `seal` made.

        Raises:
            Refused: not ours, expired, another principal's, of another endpoint or of another request; one answer for
                all.
        """
        try:
            sealed = msgspec.json.decode(raw, type=str)
            if not is_canonical(sealed):
                raise bad_request_state()
            state = msgspec.json.decode(self._codec.unseal(sealed), type=_Sealed)
        except (InvalidRequestState, msgspec.MsgspecError, ValueError):
            raise bad_request_state() from None
        owner = Principal(issuer=state.issuer, subject=state.subject)
        is_here = owner == binding.principal and state.endpoint == binding.endpoint
        if not is_here or self._clock() >= state.expires or state.digest != binding.digest():
            raise bad_request_state()
        inner = None if state.inner is None else msgspec.Raw(state.inner.encode())
        return OpenedState(
            session_id=state.session,
            inner=inner,
            call=state.call,
            turn=state.turn,
            asked=state.asked,
            answers=state.answers,
        )


def _facts(suspended: SuspendedCall) -> dict[str, Any]:
    return {"call": suspended.call, "turn": suspended.turn, "asked": suspended.asked(), "answers": suspended.answers}


def is_input_required(result: Object) -> bool:
    """Whether a result asks the client for more."""
    return bytes(result.get("resultType", b"")) == b'"input_required"'


def with_inner_state(params: Object, opened: OpenedState) -> Object:
    """A retry's params as the server is to see them."""
    rest = {key: value for key, value in params.items() if key != "requestState"}
    return rest if opened.inner is None else rest | {"requestState": opened.inner}
