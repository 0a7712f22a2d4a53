"""Credentials → principal: who is calling. API keys, access tokens, headers of trusted proxies, or nobody."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.config.auth import API_KEY_ISSUER, AuthSettings, ProxySettings
from gateway.errors import insufficient_scope, unauthenticated
from gateway.identity.access_tokens import AccessTokens, InsufficientScope, InvalidToken
from gateway.identity.context_rules import CredentialClaims, granted_by, granted_in_headers
from gateway.identity.key_digests import KeyDigests
from gateway.identity.subjects import named_in_header, unusable
from session_store import ANONYMOUS, Principal
from transports.inbound_port import Request

__all__ = ["API_KEY_ISSUER", "Authenticated", "Identity", "TrustedProxies"]


class Authenticated(msgspec.Struct, frozen=True):
    """Who calls, and what the credential says of them."""

    principal: Principal
    granted: CredentialClaims | None = None


_ANYBODY: Final = Authenticated(ANONYMOUS)


class TrustedProxies:
    """Whose word counts about where a request came from, and who sent it."""

    def __init__(self, settings: ProxySettings | None) -> None:
        self.settings = settings
        networks = () if settings is None else settings.networks
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._known: dict[str, bool] = {}

    def __contains__(self, address: object) -> bool:
        if not self._networks or not isinstance(address, str) or not address:
            return False
        if address not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()
            try:
                parsed = ipaddress.ip_address(address)
            except ValueError:
                return False
            self._known[address] = any(parsed in network for network in self._networks)
        return self._known[address]


class Identity:
    """Knows the configured credentials. Keys are held as SHA-256 digests and compared in constant time."""

    def __init__(
        self,
        *,
        api_keys: Mapping[str, Sequence[str]],
        allow_anonymous: bool,
        auth: AuthSettings | None = None,
        tokens: AccessTokens | None = None,
        metadata_url: str = "",
    ) -> None:
        self._keys = KeyDigests(
            (Authenticated(Principal(issuer=API_KEY_ISSUER, subject=name)), digest)
            for name, digests in api_keys.items()
            for digest in digests
        )
        self._allow_anonymous = allow_anonymous
        auth = auth or AuthSettings()
        self._tokens = tokens if auth.jwt else None
        self._claims = {entry.issuer: entry.claims for entry in auth.jwt}
        self._scope = " ".join(dict.fromkeys(scope for entry in auth.jwt for scope in entry.scopes))
        self._metadata_url = metadata_url
        self.proxies = TrustedProxies(auth.proxies)
        self._has_proxies = auth.proxies is not None
        self._serves_anybody = allow_anonymous and not (self._keys or self._tokens or auth.proxies)

    def known(self, request: Request) -> Authenticated | None:
        """Who sent a request, where there is nothing to find out; else None."""
        if request.forwarded is not None or self._has_proxies:
            return None
        if self._serves_anybody:
            return _ANYBODY
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        if not self._keys or scheme != "Bearer" or (self._tokens is not None and credential.count(".") == 2):
            return None
        return self._keys.holder(credential)

    async def authenticate(self, headers: Mapping[str, str], peer: str = "") -> Authenticated:
        """Who sent these headers (lower-case names), on a connection from that address.

        A credential that is presented must be good: a wrong key is never served as anonymous where keys are configured.

        Raises:
            Refused: 401, or 403 for a token without a needed scope; with `WWW-Authenticate` (RFC 6750 §3, RFC 9728
                §5.1).
        """
        if self._has_proxies and peer in self.proxies and (vouched := self._vouched(headers)) is not None:
            return vouched
        authorization = headers.get("authorization")
        if authorization is None or not (self._keys or self._tokens):
            if self._allow_anonymous:
                return _ANYBODY
            raise self._refused("Authentication required: send Authorization: Bearer with your credential.")
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not credential:
            raise self._refused("Authentication required: the Authorization header must be Bearer and a credential.")
        if self._tokens is not None and credential.count(".") == 2:
            return await self._by_token(self._tokens, credential)
        return self._by_key(credential)

    async def _by_token(self, tokens: AccessTokens, token: str) -> Authenticated:
        try:
            principal, claims = tokens.remembered(token) or await tokens.verify(token)
        except InsufficientScope as error:
            challenge = self._challenge("insufficient_scope", error.needed)
            raise insufficient_scope(f"The access token does not go far enough: {error}.", challenge) from None
        except InvalidToken as error:
            raise self._refused(f"The access token is not valid: {error}.", error="invalid_token") from None
        return Authenticated(principal, granted_by(claims, self._claims[principal.issuer]))

    def _by_key(self, key: str) -> Authenticated:
        holder = self._keys.holder(key)
        if holder is None:
            raise self._refused("The API key is not valid.", error="invalid_token")
        return holder

    def _vouched(self, headers: Mapping[str, str]) -> Authenticated | None:
        """What a trusted proxy says; None when it says nothing of who calls."""
        settings = self.proxies.settings
        if settings is None or not settings.subject_header:
            return None
        subject = headers.get(settings.subject_header.lower(), "")
        if not subject:
            return None
        try:
            subject = named_in_header(subject)
            granted = granted_in_headers(headers, settings)
        except ValueError:
            raise self._refused("What the proxy says of the caller is not UTF-8.") from None
        if why := unusable(subject):
            raise self._refused(f"The name that the proxy gives the caller cannot be used: {why}.")
        return Authenticated(Principal(issuer=settings.issuer, subject=subject), granted)

    def _refused(self, reason: str, *, error: str = "") -> Exception:
        return unauthenticated(reason, self._challenge(error, self._scope))

    def _challenge(self, error: str, scope: str) -> str:
        """The parameters of `WWW-Authenticate: Bearer`."""
        said = {"error": error, "scope": scope, "resource_metadata": self._metadata_url}
        challenge = {"realm": "mcp-session-gateway"} | {name: value for name, value in said.items() if value}
        return ", ".join(f'{name}="{value}"' for name, value in challenge.items())
