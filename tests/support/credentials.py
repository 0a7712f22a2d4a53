"""Credentials that test clients send, and the digests of them that configurations hold."""

import hashlib
from typing import Final

KEYS: Final = {"alice": "alice-key", "alice-new": "alice-key-2", "bob": "bob-key"}
"""API keys by name; `alice` and `alice-new` are two keys of one principal where a test configures both for alice."""


def sha256(text: str) -> str:
    """The hexadecimal SHA-256 digest of a key, as `gateway.api_keys` and `admin.keys` hold it."""
    return hashlib.sha256(text.encode()).hexdigest()


API_KEYS: Final = {name: sha256(key) for name, key in KEYS.items()}
"""`gateway.api_keys` of all of them, each for a principal of its name."""


def bearer(key: str) -> dict[str, str]:
    """The header that presents a key or an access token."""
    return {"Authorization": f"Bearer {key}"}
