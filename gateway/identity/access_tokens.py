"""Verify JWT access tokens (RFC 9068) with the keys that their issuer publishes (RFC 7517)."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx2
import jwt
from cachetools import FIFOCache

from gateway.config.auth import JwtSettings
from gateway.identity.credential_claims import CLOCK_SKEW_S, InsufficientScope, InvalidToken, subject_fault
from session_store import Principal
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

FETCH_S: Final = 5.0
KEYS_MAX_AGE_S: Final = 3_600.0
"""Age in seconds at which an issuer's keys are fetched again."""
REFETCH_S: Final = 10.0
"""Minimum seconds between two fetches of an issuer's keys because of unknown key ids. Forged tokens could otherwise
flood the issuer."""
CACHED_S: Final = 300.0
"""Longest time in seconds for which a verified token is cached. For that time, a token with a revoked key may still be
accepted."""
_MAX_CACHED: Final = 10_000


def is_access_token(header: Mapping[str, Any], claims: Mapping[str, Any]) -> bool:
    """Return True if a JWT with this header and these claims is an access token. Issuers sign other tokens with the
    same keys: identity tokens (OpenID Connect Core §2), refresh, logout and security event tokens.

    The header's `typ` decides unless it is `JWT` or missing: `at+jwt` (RFC 9068 §2.1) means yes, any other value no.
    Otherwise, the claims decide. They must not have `events` or a hash that identity tokens have. The claim `typ` must
    be Bearer or missing (Keycloak), and `token_use` must be access or missing (Cognito). If both are missing, `nonce`
    must be missing too.
    """
    kind = str(header.get("typ", "JWT")).lower().removeprefix("application/")
    if kind != "jwt":
        return kind == "at+jwt"
    marks = [str(claims[name]).lower() for name in ("typ", "token_use") if name in claims]
    if any(name in claims for name in ("at_hash", "c_hash", "s_hash", "events")):
        return False
    return all(mark in ("bearer", "access") for mark in marks) and (bool(marks) or "nonce" not in claims)


class AccessTokens:
    """Verify the access tokens of the issuers that the operator trusts, and cache the results."""

    def __init__(self, issuers: Sequence[JwtSettings], clock: Callable[[], float]) -> None:
        self._issuers = {settings.issuer: _Issuer(settings) for settings in issuers}
        self._clock = clock
        self._verified: FIFOCache[bytes, tuple[Principal, Mapping[str, Any], float]] = FIFOCache(_MAX_CACHED)

    def cached(self, token: str) -> tuple[Principal, Mapping[str, Any], float] | None:
        """Return the cached result of `verify` for a token. Return None if no result is cached, or if it has
        expired."""
        found = self._verified.get(hashlib.sha256(token.encode()).digest())
        if found is None or self._clock() >= found[2]:
            return None
        return found

    async def verify(self, token: str) -> tuple[Principal, Mapping[str, Any], float]:
        """Verify a token. Return its principal, its claims, and the Unix time until which this result is cached.

        Raises:
            InvalidToken: the token is not from a trusted issuer, not for this gateway, or not valid now.
        """
        try:
            unverified = jwt.decode(token, options={"verify_signature": False})
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise InvalidToken("it is not a JWT") from None
        issuer = self._issuers.get(str(unverified.get("iss", "")))
        if issuer is None:
            raise InvalidToken("this gateway does not trust its issuer (gateway.auth.jwt)")
        if not is_access_token(header, unverified):
            raise InvalidToken("it is not an access token (RFC 9068)")
        claims = issuer.checked(token, await issuer.key(str(header.get("kid", ""))), self._clock())
        principal = Principal(issuer=issuer.settings.issuer, subject=str(claims["sub"]))
        until = min(float(claims["exp"]), self._clock() + CACHED_S)
        self._verified[hashlib.sha256(token.encode()).digest()] = found = (principal, claims, until)
        return found


class _Issuer:
    """Fetch and cache the keys that one issuer publishes, and check tokens with them."""

    def __init__(self, settings: JwtSettings) -> None:
        self.settings = settings
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = float("-inf")
        self._tasks = Tasks(f"keys of {settings.issuer}")

    async def key(self, name: str) -> jwt.PyJWK:
        """Return the issuer's key with the id `name`. If the cached keys are old, fetch the keys first. Do so, too, if
        the id is unknown and the last fetch was more than `REFETCH_S` seconds ago.

        Raises:
            InvalidToken: the issuer does not publish the key.
        """
        age = time.monotonic() - self._fetched_at
        if age > KEYS_MAX_AGE_S or (name not in self._keys and age > REFETCH_S):
            await self._tasks.share("fetch", self._fetch)
        if name not in self._keys:
            raise InvalidToken("its issuer does not publish the key that signed it")
        return self._keys[name]

    async def _fetch(self) -> None:
        try:
            async with httpx2.AsyncClient(timeout=FETCH_S) as client:
                response = await client.get(self.settings.jwks_url)
                response.raise_for_status()
                found = jwt.PyJWKSet.from_dict(response.json())
            self._keys = {str(key.key_id or ""): key for key in found.keys}
        except (
            httpx2.HTTPError,
            jwt.PyJWTError,
            ValueError,
            TypeError,
            AttributeError,
            RecursionError,
            OSError,
        ) as error:
            # The present keys stay valid: an issuer that is unreachable for a while must not lock everybody out.
            logger.warning("the keys of %s could not be fetched: %s", self.settings.issuer, type(error).__name__)
        finally:
            self._fetched_at = time.monotonic()

    def checked(self, token: str, key: jwt.PyJWK, now: float) -> Mapping[str, Any]:
        """Check the signature and the claims of a token, and return its claims. `now`: the Unix time, which the token's
        time of issue is compared with. The issuer's settings say which algorithms are allowed, never the token itself.
        Raises `InvalidToken`."""
        settings, options = self.settings, {"require": ["exp", "iss", "sub", "aud"], "verify_iat": False}
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=CLOCK_SKEW_S,
                options=options,  # type: ignore[arg-type]  # a plain dict of the options it takes
            )
        except jwt.ExpiredSignatureError:
            raise InvalidToken("it has expired") from None
        except jwt.InvalidAudienceError:
            raise InvalidToken("its audience is another service") from None
        except jwt.PyJWTError as error:
            raise InvalidToken(f"its signature or claims are invalid ({type(error).__name__})") from None
        if isinstance(issued := claims.get("iat"), int | float) and issued > now + CLOCK_SKEW_S:
            raise InvalidToken("it was issued in the future: compare the clocks of its issuer and this machine")
        if claims.get("cnf") is not None:
            # Valid only with a proof of possession of a key (RFC 7800; `jkt`: RFC 9449 §7.1, `x5t#S256`: RFC 8705 §3),
            # which the gateway does not check: accepted as a bearer token, it would serve a thief.
            raise InvalidToken("it is bound to a key, not a bearer token: request one without DPoP or mutual TLS")
        if why := subject_fault(claims["sub"]):
            raise InvalidToken(f"its subject is invalid: {why}")
        missing = set(settings.scopes) - set(str(claims.get("scope", "")).split())
        if missing:
            raise InsufficientScope(settings.scopes, missing)
        return claims
