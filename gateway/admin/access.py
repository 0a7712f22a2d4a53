"""Who operates the gateway: the holder of a key, by `Authorization: Bearer`, or signed in with it by a browser."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from gateway.digests import Digests, digest_of
from session_store import KeyRing
from session_store.tokens import Purpose, is_canonical
from transports.inbound.http import Guard

__all__ = ["Access"]

SIGNED_IN_S: Final = 12 * 3_600
_COOKIE: Final = "mcp_gateway_operator"
_PROOF: Final = 16


class Access:
    """Keeps the keys' digests, and signs the cookies of those who showed a key.

    `is_secure`: whether a request has come over TLS, as far as a trusted proxy.
    """

    def __init__(
        self, keys: Mapping[str, Sequence[str]], ring: KeyRing, *, is_secure: Callable[[Request], bool]
    ) -> None:
        self._is_secure = is_secure
        self._keys = Digests((name, digest) for name, digests in keys.items() for digest in digests)
        # What a cookie holds: the name, and how the digest of its key begins.
        self._proofs = {(name, digest[:_PROOF]) for name, digests in keys.items() for digest in digests}
        # The newest key signs: itsdangerous takes the last one.
        self._serializer = URLSafeTimedSerializer(list(reversed(ring.derive(Purpose.OPERATOR))), salt=Purpose.OPERATOR)

    @property
    def is_open(self) -> bool:
        """Whether anybody can come in at all."""
        return len(self._keys) > 0

    def operator(self, request: Request) -> str | None:
        """Who sends a request. A cookie is believed from pages of our own only."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self._keys.holder(key.strip()) if scheme.lower() == "bearer" else None
        cookie = request.cookies.get(_COOKIE)
        if cookie is None or not is_canonical(cookie) or not Guard.same_site(request.headers):
            return None
        try:
            name, proof = self._serializer.loads(cookie, max_age=SIGNED_IN_S)
        except (BadSignature, ValueError, TypeError):
            return None
        # Its key must be good still.
        return name if (name, proof) in self._proofs else None

    def sign_in(self, request: Request, response: Response, key: str) -> bool:
        """Remember the holder of a key in a cookie; whether it is one."""
        name = self._keys.holder(key)
        if name is None:
            return False
        response.set_cookie(
            _COOKIE,
            str(self._serializer.dumps([name, digest_of(key)[:_PROOF]])),
            max_age=SIGNED_IN_S,
            path=f"{request.scope.get('root_path', '')}/admin",
            secure=self._is_secure(request),
            httponly=True,
            samesite="strict",
        )
        return True

    @staticmethod
    def sign_out(request: Request, response: Response) -> None:
        """Forget it."""
        response.delete_cookie(_COOKIE, path=f"{request.scope.get('root_path', '')}/admin")
