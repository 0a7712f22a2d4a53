"""Verifies keys of clients and operators against configured digests, in constant time."""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Generic, TypeVar

__all__ = ["KeyDigests", "digest_of"]

Holder = TypeVar("Holder")


def digest_of(key: str) -> str:
    """The SHA-256 digest of a key in hex, as configurations contain it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyDigests(Generic[Holder]):
    """Finds the holder of a key by the key's digest."""

    def __init__(self, named: Iterable[tuple[Holder, str]]) -> None:
        self._digests = [(holder, bytes.fromhex(digest)) for holder, digest in named]

    def __len__(self) -> int:
        return len(self._digests)

    def holder(self, key: str) -> Holder | None:
        """The holder of a key; None if the key is unknown."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found: Holder | None = None
        for holder, expected in self._digests:
            # No early exit: the time that the search takes must not tell which key is similar.
            if hmac.compare_digest(digest, expected):
                found = holder
        return found
