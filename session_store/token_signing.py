"""Sign session ids as tokens, and verify them, with a key ring that can be rotated.

Each purpose has its own key, derived from the ring with the purpose as salt. So a value made for one purpose never
verifies as another. The first key signs, all verify. Tokens are signed with HMAC-SHA256 through itsdangerous, which
derives its key once more. Values that contain more than an id have the bare HMAC-SHA256 of their bytes (`Macs`).
"""

import base64
import functools
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from itsdangerous import BadSignature, Signer

MIN_KEY_CHARS: Final = 32
_VERIFIED_HELD: Final = 4_096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{43}")


class InvalidKeyRing(ValueError):
    """The keys cannot be used; the message says which key and why, and never shows a key."""


class Purpose(StrEnum):
    """The purpose of a signed value. Each purpose has keys of its own, which are derived with the text below: never
    change one."""

    TOKEN = "session-token"
    COOKIE = "session-cookie"
    REQUEST_STATE = "request-state"
    ASSERTION = "context-assertion"
    OPERATOR = "operator-cookie"
    CONNECTION = "http-sse-address"
    TASK = "task-handle"
    PEER = "peer-connection"
    STDIO_KEY = "stdio-session-key"
    HOP = "via-pseudonym"
    CONSENT = "consented-tokens"


def is_canonical(text: str) -> bool:
    """Return True if the part after the last dot is the canonical base64url encoding of its bytes, without padding.

    Decoders ignore the unused bits of the last character (RFC 4648 §3.5), so a value would verify in several spellings.
    Only one spelling is accepted. Otherwise, a value that was blocked by its text could come back in another spelling.
    """
    last = text.rpartition(".")[2]
    padded = last + "=" * (-len(last) % 4)
    try:
        return "=" not in last and base64.urlsafe_b64encode(base64.urlsafe_b64decode(padded)).decode() == padded
    except ValueError:
        return False


def has_form_of_token(text: str) -> bool:
    """Return True if the text looks like a token. The signature is not checked."""
    return bool(_TOKEN.fullmatch(text))


def generate_key() -> str:
    """Return a new signing key: 256 random bits."""
    return secrets.token_urlsafe(32)


class KeyRing:
    """The operator's signing keys, newest first. The constructor raises `InvalidKeyRing` for no key, a short key, or
    the same key twice."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys:
            raise InvalidKeyRing("the key ring is empty: give at least one key")
        for place, key in enumerate(keys, start=1):
            if len(key) < MIN_KEY_CHARS:
                raise InvalidKeyRing(
                    f"key {place} has {len(key)} characters; a key needs at least {MIN_KEY_CHARS} "
                    "(`mcp-session-gateway keygen` makes one)"
                )
        if len(set(keys)) != len(keys):
            raise InvalidKeyRing("the key ring holds the same key twice")
        self._keys = tuple(keys)

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """Return the key ring from a comma-separated list of keys, the format of `MCP_GATEWAY_KEYS`."""
        return cls([key for part in text.split(",") if (key := part.strip())])

    @classmethod
    def ephemeral(cls) -> "KeyRing":
        """Return a ring with a new random key. Only this object can verify what it signs."""
        return cls([generate_key()])

    def derive(self, purpose: Purpose) -> list[bytes]:
        """Return one 32-byte key for `purpose` from each key of the ring, newest first."""
        salt = b"mcp-session-gateway/v1/" + purpose.value.encode()
        return [hashlib.blake2b(key.encode(), key=salt[:64], digest_size=32).digest() for key in self._keys]


class Macs:
    """Make and verify HMAC-SHA256 codes for one purpose. The first key of the ring makes new ones; all keys verify."""

    def __init__(self, ring: KeyRing, purpose: Purpose) -> None:
        self._keys = ring.derive(purpose)

    def of(self, data: bytes) -> bytes:
        """Return the MAC of `data`, made with the newest key."""
        return hmac.digest(self._keys[0], data, "sha256")

    def verify(self, data: bytes, mac: bytes) -> bool:
        """Return True if any key of the ring has made this MAC of `data`."""
        return any(hmac.compare_digest(hmac.digest(key, data, "sha256"), mac) for key in self._keys)


class TokenCodec:
    """Sign ids as tokens, for one purpose, and verify such tokens."""

    def __init__(self, ring: KeyRing, purpose: Purpose) -> None:
        # itsdangerous signs with the last key of the list and verifies with all of them.
        self._signer = Signer(
            list(reversed(ring.derive(purpose))),
            salt=purpose.value.encode(),
            sep=".",
            key_derivation="hmac",
            digest_method=hashlib.sha256,
        )

        # Every message of a session repeats its token, and an HMAC for each would be half of the message's cost.
        # Only valid tokens are kept: anyone can make invalid ones, which would push the valid ones out.
        self._verified: OrderedDict[str, str] = OrderedDict()
        self.sign = functools.lru_cache(_VERIFIED_HELD)(lambda session_id: self._signer.sign(session_id).decode())

    def verify(self, token: str) -> str | None:
        """Return the id in a token that a key of this ring has signed for this purpose; None for any other text. Does
        not access the store."""
        known = self._verified.get(token)
        if known is not None:
            return known
        if not has_form_of_token(token) or not is_canonical(token):
            return None
        try:
            session_id = self._signer.unsign(token).decode()
        except BadSignature:
            return None
        self._verified[token] = session_id
        if len(self._verified) > _VERIFIED_HELD:
            self._verified.popitem(last=False)
        return session_id
