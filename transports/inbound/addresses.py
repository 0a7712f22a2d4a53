"""Addresses of event streams of HTTP+SSE: random, signed, and valid only for the caller who opened the stream.

Does not know streams, nor who a caller is. Signed with HMAC-SHA256 through itsdangerous, so that any process that has
the keys can check an address by itself. Not a `TokenCodec`: its salt is the caller, and transports import no store.
"""

import hashlib
import secrets
from collections.abc import Sequence

from itsdangerous import BadSignature, Signer

__all__ = ["Addresses"]


class Addresses:
    """Makes and checks addresses. `keys` are newest first: the first one signs, all verify."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = list(reversed(keys))  # itsdangerous signs with the last key

    def new(self, caller: str) -> str:
        """A new address for that caller. Nobody can guess it."""
        return self._signer(caller).sign(secrets.token_urlsafe(18)).decode()

    def is_of(self, address: str, caller: str) -> bool:
        """True if the address was made for that caller."""
        try:
            self._signer(caller).unsign(address)
        except BadSignature:
            return False
        return True

    def _signer(self, caller: str) -> Signer:
        salt = f"http+sse:{caller}".encode()
        return Signer(self._keys, salt=salt, sep=".", key_derivation="hmac", digest_method=hashlib.sha256)
