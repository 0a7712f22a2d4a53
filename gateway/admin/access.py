"""Who operates the gateway: the holder of a key, by `Authorization: Bearer`, or signed in with it by a browser."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

from session_store import KeyRing
from session_store.tokens import Purpose

__all__ = ["Access", "is_from_elsewhere"]

SIGNED_IN_S: Final = 12 * 3_600
_COOKIE: Final = "mcp_gateway_operator"
_PROOF: Final = 16


class Access:
    """Keeps the keys' digests, and signs the cookies of those who showed a key."""

    def __init__(self, keys: Mapping[str, Sequence[str]], ring: KeyRing) -> None:
        self._keys = [(name, digest) for name, digests in keys.items() for digest in digests]
        # The newest key signs: itsdangerous takes the last one.
        self._serializer = URLSafeTimedSerializer(list(reversed(ring.derive(Purpose.OPERATOR))), salt=Purpose.OPERATOR)

    @property
    def is_open(self) -> bool:
        """Whether anybody can come in at all."""
        return bool(self._keys)

    def holder(self, key: str) -> str | None:
        """Whose key that is."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for name, expected in self._keys:
            # No early exit: how long this takes says nothing about which key was nearly right.
            if hmac.compare_digest(digest, expected):
                found = name
        return found

    def operator(self, request: Request) -> str | None:
        """Who sends a request. A cookie is believed from pages of our own only."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self.holder(key.strip()) if scheme.lower() == "bearer" else None
        cookie = request.cookies.get(_COOKIE)
        if cookie is None or is_from_elsewhere(request):
            return None
        try:
            name, proof = self._serializer.loads(cookie, max_age=SIGNED_IN_S)
        except (BadSignature, ValueError, TypeError):
            return None
        # Its key must be good still.
        return name if any(known == name and digest[:_PROOF] == proof for known, digest in self._keys) else None

    def sign_in(self, request: Request, response: Response, key: str) -> bool:
        """Remember the holder of a key in a cookie; whether it is one."""
        name = self.holder(key)
        if name is None:
            return False
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        response.set_cookie(
            _COOKIE,
            str(self._serializer.dumps([name, digest[:_PROOF]])),
            max_age=SIGNED_IN_S,
            path=f"{request.scope.get('root_path', '')}/admin",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return True

    @staticmethod
    def sign_out(request: Request, response: Response) -> None:
        """Forget it."""
        response.delete_cookie(_COOKIE, path=f"{request.scope.get('root_path', '')}/admin")


def is_from_elsewhere(request: Request) -> bool:
    """Whether a browser says that a page of another site has caused the request."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
