"""Keys that clients and operators hold. Only their digests are known here."""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Generic, TypeVar

__all__ = ["KeyDigests", "digest_of"]

Holder = TypeVar("Holder")


def digest_of(key: str) -> str:
    """SHA-256 in hex, as configurations have it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyDigests(Generic[Holder]):
    """Finds the holder of a key by the key's digest."""

    def __init__(self, named: Iterable[tuple[Holder, str]]) -> None:
        self._digests = [(holder, bytes.fromhex(digest)) for holder, digest in named]

    def __len__(self) -> int:
        return len(self._digests)

    def holder(self, key: str) -> Holder | None:
        """Whose key that is."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found: Holder | None = None
        for holder, expected in self._digests:
            # No early exit: how long this takes says nothing about which key was nearly right.
            if hmac.compare_digest(digest, expected):
                found = holder
        return found
