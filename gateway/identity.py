"""Credentials → principal: who is calling. API keys and anonymous clients."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from gateway.errors import unauthenticated
from session_store import ANONYMOUS, Principal

__all__ = ["API_KEY_ISSUER", "Identity"]

API_KEY_ISSUER = "api-key"


class Identity:
    """Knows the configured credentials. Keys are held as SHA-256 digests and compared in constant time."""

    def __init__(self, *, api_keys: Mapping[str, Sequence[str]], allow_anonymous: bool) -> None:
        self._keys = [(name, bytes.fromhex(digest)) for name, digests in api_keys.items() for digest in digests]
        self._allow_anonymous = allow_anonymous

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Who sent these headers (lower-case names).

        A credential that is presented must be good: a wrong key is never served as anonymous where keys are configured.

        Raises:
            Refused: 401 with `WWW-Authenticate` (RFC 6750 §3).
        """
        authorization = headers.get("authorization")
        if authorization is None or not self._keys:
            if self._allow_anonymous:
                return ANONYMOUS
            raise unauthenticated("Authentication required: send Authorization: Bearer with your API key.")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise unauthenticated("Authentication required: the Authorization header must be Bearer and an API key.")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found: str | None = None
        for name, expected in self._keys:
            # No early exit: how long this takes says nothing about which key was nearly right.
            if hmac.compare_digest(digest, expected):
                found = name
        if found is None:
            raise unauthenticated("The API key is not valid.")
        return Principal(issuer=API_KEY_ISSUER, subject=found)
