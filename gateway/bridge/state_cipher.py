"""Encrypt and authenticate texts with the gateway's keys (AES-256-GCM). Pure, except for random nonces.

The format is that of the SDK's `AESGCMRequestStateCodec`; a test checks that each can read the other's texts. The SDK
is not imported, because loading it would take half of the gateway's start time.
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_FORMAT: Final = "v1."
_KEY_USE: Final = b"mcp/request-state/v1/aes-256-gcm"
_NAME_USE: Final = b"mcp/request-state/v1/kid:"
_NAME_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class InvalidSeal(ValueError):
    """The text was not encrypted with a key of this key ring, or has changed since."""


class StateCipher:
    """Encrypt with the first key and decrypt with any key, so that keys can be rotated.

    An encrypted text is `v1.` and then, as base64url without padding: the id of the key, the nonce, the encrypted
    bytes. Format and key id are authenticated too, so that a text cannot be mistaken for one of another format or key.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        derived = [HKDF(algorithm=SHA256(), length=32, salt=None, info=_KEY_USE).derive(key) for key in keys]
        names = [hashlib.sha256(_NAME_USE + key).digest()[:_NAME_BYTES] for key in derived]
        self._ciphers = {name: AESGCM(key) for name, key in zip(names, derived, strict=True)}
        self._newest = names[0]

    def seal(self, content: bytes) -> str:
        name, nonce = self._newest, secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[name].encrypt(nonce, content, _FORMAT.encode() + name)
        return _FORMAT + base64.urlsafe_b64encode(name + nonce + sealed).decode().rstrip("=")

    def open(self, text: str) -> bytes:
        """Decrypt a text, and return its content. Raises `InvalidSeal` if no key fits or the text was changed."""
        form, _, coded = text.partition(".")
        try:
            raw = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise InvalidSeal("the text is not base64url") from None
        # The spare bits of the last character must be zero, so that each sealed text has only one spelling.
        is_canonical = base64.urlsafe_b64encode(raw).decode().rstrip("=") == coded
        name, nonce = raw[:_NAME_BYTES], raw[_NAME_BYTES : _NAME_BYTES + _NONCE_BYTES]
        cipher = self._ciphers.get(name)
        if f"{form}." != _FORMAT or not is_canonical or cipher is None:
            raise InvalidSeal("the text is of another format or key")
        if len(raw) < _NAME_BYTES + _NONCE_BYTES + _TAG_BYTES:
            raise InvalidSeal("the text is cut off")
        try:
            return cipher.decrypt(nonce, raw[_NAME_BYTES + _NONCE_BYTES :], _FORMAT.encode() + name)
        except InvalidTag:
            raise InvalidSeal("the text was changed") from None
