"""Sign session assertions: short-lived tokens that prove the facts of a session to an HTTP server.

An assertion is a JWT (RFC 7519) signed with EdDSA (RFC 8037), for one server (`aud`), valid for a minute. The public
keys are at `/.well-known/jwks.json` (RFC 7517). An assertion also gives access to the session's state over HTTPS.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.context.session_facts import workspace_source
from session_store import KeyRing, Purpose, Session
from session_store.token_signing import is_canonical

HEADER: Final = "mcp-gateway-context"
ISSUER: Final = "mcp-session-gateway"
"""The claim `iss` of a gateway without `public_url`."""
VALID_S: Final = 60
_RENEW_AFTER_S: Final = 20
_SKEW_S: Final = 5
_MAX_CACHED: Final = 10_000
_MAX_CACHED_BYTES: Final = 16 << 20


@dataclass(eq=False, repr=False)
class Assertions:
    """Sign and verify assertions. The first key of the ring signs, all keys verify. `issuer` is the claim `iss`.
    `fields` returns further claims."""

    ring: InitVar[KeyRing]
    _: KW_ONLY
    issuer: str
    clock: Callable[[], float] = time.time
    fields: Callable[[Session], Mapping[str, Any]] = lambda _: {}

    def __post_init__(self, ring: KeyRing) -> None:
        seeds = [hashlib.sha256(key).digest() for key in ring.derive(Purpose.ASSERTION)]
        keys = map(Ed25519PrivateKey.from_private_bytes, seeds)
        self._keys = {_text(hashlib.sha256(_raw(key)).digest()[:12]): key for key in keys}
        self._cached: dict[tuple[str, int, str], tuple[float, str]] = {}
        self._cached_bytes = 0

    def of(self, session: Session, audience: str) -> str:
        """Return an assertion of a session for the server at the URL `audience`. It is cached, and renewed long before
        it expires."""
        now = self.clock()
        key = (session.id, session.version, audience)
        at, token = self._cached.get(key, (0.0, ""))
        if not token or now - at >= _RENEW_AFTER_S:
            token = self._sign(session, audience, int(now))
            if len(self._cached) >= _MAX_CACHED or self._cached_bytes > _MAX_CACHED_BYTES:
                self._cached.clear()
                self._cached_bytes = 0
            self._cached[key] = (now, token)
            self._cached_bytes += len(token)
        return token

    def _sign(self, session: Session, audience: str, now: int) -> str:
        import jwt  # loaded only if a server has a URL

        name, key = next(iter(self._keys.items()))
        claims = {
            "iss": self.issuer,
            "aud": audience,
            "sub": str(session.principal),
            "iat": now,
            "exp": now + VALID_S,
            "session_id": session.id,
            "workspace": session.context.workspace,
            "workspace_provenance": workspace_source(session.context),
            "trust": session.context.trust,
            "permissions": list(session.context.permissions),
            "agent": session.client.name,
            **self.fields(session),
        }
        return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": name})

    def session_of(self, token: str) -> str | None:
        """Verify an assertion of this gateway, and return the id of its session; None if it is invalid or expired."""
        if not is_canonical(token):
            return None
        import jwt  # as above

        try:
            key = self._keys[jwt.get_unverified_header(token).get("kid", "")]
            options: Any = {"verify_aud": False, "verify_exp": False, "verify_iat": False}
            claims = jwt.decode(token, key.public_key(), algorithms=["EdDSA"], issuer=self.issuer, options=options)
        except (jwt.InvalidTokenError, KeyError):
            return None
        is_valid = claims.get("iat", 0) - _SKEW_S <= self.clock() < claims.get("exp", 0)
        return str(claims["session_id"]) if is_valid and "session_id" in claims else None

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JSON Web Key Set (RFC 7517)."""
        return {
            "keys": [
                {"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": name, "x": _text(_raw(key))}
                for name, key in self._keys.items()
            ]
        }


def _raw(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
