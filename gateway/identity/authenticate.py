"""Authenticate requests: by API key, access token, headers of a trusted proxy, or as anonymous."""

import hashlib
import hmac
import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from gateway.config.auth import API_KEY_ISSUER, AuthSettings, ProxySettings
from gateway.config.sessions import FieldSettings
from gateway.errors import insufficient_scope, unauthenticated
from gateway.identity.credential_claims import (
    CallerToken,
    CredentialClaims,
    InsufficientScope,
    InvalidToken,
    claims_in_headers,
    claims_in_token,
    decoded_header,
    fields_in_headers,
    subject_fault,
)
from session_store import ANONYMOUS, Principal

if TYPE_CHECKING:
    from gateway.identity.access_tokens import AccessTokens  # loads an HTTP client, and PyJWT

Holder = TypeVar("Holder")


def digest_of(key: str) -> str:
    """Return the SHA-256 digest of an API key in hex, as it is written in the configuration."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyDigests(Generic[Holder]):
    """Find the holder of an API key, although only digests of keys are configured. `named`: each holder with the
    hexadecimal digest of a key; a holder may have several keys."""

    def __init__(self, named: Iterable[tuple[Holder, str]]) -> None:
        self._digests = [(holder, bytes.fromhex(digest)) for holder, digest in named]

    def __len__(self) -> int:
        return len(self._digests)

    def holder(self, key: str) -> Holder | None:
        """Return the holder of a key; None if the key is unknown."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found: Holder | None = None
        for holder, expected in self._digests:
            # No early exit: the time that the search takes must not tell which key is similar.
            if hmac.compare_digest(digest, expected):
                found = holder
        return found


class Authenticated(msgspec.Struct, frozen=True):
    """The caller of a request, as authentication has found it: a principal, the claims of its credential, and how long
    this result may be reused."""

    principal: Principal
    granted: CredentialClaims | None = None
    """The claims of the caller's credential; None if it has none."""
    until: float = 0.0
    """The Unix time until which requests with the same head from the same address need no new authentication; infinite
    if only a change of the configuration ends this."""


_ANYBODY: Final = Authenticated(ANONYMOUS, until=math.inf)


class TrustedProxies:
    """The addresses of trusted proxies, whose headers may name a request's client address and principal. `address in
    proxies` is True for such an address."""

    def __init__(self, settings: ProxySettings | None) -> None:
        self.settings = settings
        networks = () if settings is None else settings.networks
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def __contains__(self, address: object) -> bool:
        if not self._networks or not isinstance(address, str):
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


class Authenticator:
    """Authenticate requests with the configured credentials.

    `metadata_url` is the URL of the resource metadata (RFC 9728), which `WWW-Authenticate` names; empty if there is
    none. `fields` are the context fields that the operator has defined; claims, or headers of trusted proxies, can set
    their values. `keeps_tokens`: keep callers' access tokens, for servers that get other tokens in exchange.
    """

    def __init__(
        self,
        *,
        api_keys: Mapping[str, Sequence[str]],
        allow_anonymous: bool,
        auth: AuthSettings | None = None,
        tokens: "AccessTokens | None" = None,
        metadata_url: str = "",
        fields: Mapping[str, FieldSettings] = MappingProxyType({}),
        keeps_tokens: bool = False,
    ) -> None:
        self.replace_keys(api_keys)
        self.keep_tokens(wanted=keeps_tokens)
        self._allow_anonymous = allow_anonymous
        auth = auth or AuthSettings()
        self._tokens = tokens if auth.jwt else None
        self._claims = {entry.issuer: entry.claims for entry in auth.jwt}
        self._scope = " ".join(dict.fromkeys(scope for entry in auth.jwt for scope in entry.scopes))
        self._metadata_url = metadata_url
        self.proxies = TrustedProxies(auth.proxies)
        self._claim_fields = {name: field.claim for name, field in fields.items() if field.claim}
        self._header_fields = {
            name: field.header.lower() for name, field in fields.items() if field.header and not field.client_header
        }

    def replace_keys(self, api_keys: Mapping[str, Sequence[str]]) -> None:
        """Accept only these API keys from now on. `api_keys`: the digests of the keys of each principal, by its
        name."""
        self._keys = KeyDigests(
            (Authenticated(Principal(issuer=API_KEY_ISSUER, subject=name), until=math.inf), digest)
            for name, digests in api_keys.items()
            for digest in digests
        )

    def keep_tokens(self, *, wanted: bool) -> None:
        """Set whether callers' access tokens are kept from now on (`wanted`). For a caller whose token is in the cache,
        this takes effect when the token is next verified."""
        self._keeps_tokens = wanted

    async def authenticate(self, headers: Mapping[str, str], peer: str = "") -> Authenticated:
        """Authenticate a request, and return its caller. The arguments are those of `known`. Raises `Refused` (401,
        403)."""
        who = self.known(headers, peer)
        return await self.verify(headers, peer) if who is None else who

    def known(self, headers: Mapping[str, str], peer: str = "") -> Authenticated | None:
        """Return the caller of a request if no token has to be verified for this. Return None if the request has an
        access token that is not in the cache: then call `verify`. `headers` have lower-case names. `peer`: the address
        at the other end of the connection.

        If keys or issuers are configured, an invalid credential is refused, never served as anonymous.

        Raises:
            Refused: 401, or 403 for a token without a needed scope; with `WWW-Authenticate` (RFC 6750 §3, RFC 9728
                §5.1).
        """
        who = self._known(headers, peer)
        return who if who is None or not self._header_fields else self.with_fields(who, headers, peer)

    def _known(self, headers: Mapping[str, str], peer: str) -> Authenticated | None:
        """Return the caller as `known` does, but without the context fields that trusted proxies set in headers."""
        if peer in self.proxies and (named := self._named_by_proxy(headers)) is not None:
            return named
        authorization = headers.get("authorization")
        if authorization is None or not (self._keys or self._tokens):
            if self._allow_anonymous:
                return _ANYBODY
            raise self._refused("Authentication required: send Authorization: Bearer with your credential.")
        scheme, credential = _credential(authorization)
        if scheme != "bearer" or not credential:
            raise self._refused("Authentication required: the Authorization header must hold Bearer and a credential.")
        if self._tokens is not None and credential.count(".") == 2:
            verified = self._tokens.cached(credential)
            return None if verified is None else self.token_holder(*verified, credential)
        holder = self._keys.holder(credential)
        if holder is None:
            raise self._refused("The API key is not valid.", error="invalid_token")
        return holder

    def with_fields(self, who: Authenticated, headers: Mapping[str, str], peer: str) -> Authenticated:
        """Return `who`, the caller, together with the context fields that `headers` have. Only headers of a trusted
        proxy count: for another `peer`, return `who` unchanged. Raises `Refused` (401) if a header is not UTF-8."""
        if peer not in self.proxies:
            return who
        try:
            fields = fields_in_headers(headers, self._header_fields)
        except ValueError:
            raise self._refused("A header in which the proxy sends a field of the context is not UTF-8.") from None
        if not fields:
            return who
        granted = who.granted or CredentialClaims()
        return replace(who, granted=replace(granted, fields=(*granted.fields, *fields)))

    async def verify(self, headers: Mapping[str, str], peer: str = "") -> Authenticated:
        """Return the caller of a request whose access token is not in the cache, after verifying this token. The
        arguments are those of `known`. Raises `Refused` (401, 403)."""
        assert self._tokens is not None
        try:
            token = _credential(headers["authorization"])[1]
            holder = self.token_holder(*await self._tokens.verify(token), token)
            return self.with_fields(holder, headers, peer)
        except InsufficientScope as error:
            challenge = self._challenge("insufficient_scope", error.needed)
            raise insufficient_scope(f"The access token lacks a required scope: {error}.", challenge) from None
        except InvalidToken as error:
            raise self._refused(f"The access token is not valid: {error}.", error="invalid_token") from None

    def token_holder(
        self, principal: Principal, claims: Mapping[str, Any], until: float = 0.0, token: str = ""
    ) -> Authenticated:
        """Return the caller with a verified access token that has these claims. `until`: the Unix time at which the
        token must be verified again. `token`: the token itself, which the result contains if callers' tokens are kept
        (`keep_tokens`)."""
        granted = claims_in_token(claims, self._claims[principal.issuer], self._claim_fields)
        if token and self._keeps_tokens:
            granted = replace(granted, token=CallerToken.of(token, claims))
        return Authenticated(principal, granted, until)

    def _named_by_proxy(self, headers: Mapping[str, str]) -> Authenticated | None:
        """Return the caller whom a trusted proxy names in the headers of a request; None if the headers name none.
        Raises `Refused` (401) if the name is invalid."""
        settings = self.proxies.settings
        if settings is None or not settings.subject_header:
            return None
        subject = headers.get(settings.subject_header.lower(), "")
        if not subject:
            return None
        try:
            subject = decoded_header(subject)
        except ValueError:
            raise self._refused("The header in which the proxy names the caller is not UTF-8.") from None
        if why := subject_fault(subject):
            raise self._refused(f"The subject that the proxy sent is invalid: {why}.")
        principal = Principal(issuer=settings.issuer, subject=subject)
        return Authenticated(principal, claims_in_headers(headers, settings), math.inf)

    def _refused(self, reason: str, *, error: str = "") -> Exception:
        return unauthenticated(reason, self._challenge(error, self._scope))

    def _challenge(self, error: str, scope: str) -> str:
        """Return the parameters of a `WWW-Authenticate: Bearer` header, as text. `error`: the error code of RFC 6750;
        `scope`: the scopes that a token needs. Empty ones are left out."""
        parameters = {"error": error, "scope": scope, "resource_metadata": self._metadata_url}
        challenge = {"realm": "mcp-session-gateway"} | {name: value for name, value in parameters.items() if value}
        return ", ".join(f'{name}="{value}"' for name, value in challenge.items())


def _credential(authorization: str) -> tuple[str, str]:
    """Return the scheme of an `Authorization` header, in lower case, and the credential."""
    scheme, _, credential = authorization.partition(" ")
    return scheme.lower(), credential.strip()


WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ResourceMetadata:
    """The document by which clients find out where to get access tokens for this gateway (protected resource metadata,
    RFC 9728). `paths`: the paths at which it is served. `url`: its full address. Both are empty if no resource or no
    issuer is configured."""

    def __init__(self, settings: AuthSettings) -> None:
        self._settings = settings
        parts = urlsplit(settings.resource)
        is_there = bool(settings.resource and settings.jwt)
        # RFC 9728 §3.1: the well-known path goes between host and path. It is served at the root as well.
        path = parts.path.rstrip("/")
        self.paths = tuple(dict.fromkeys((WELL_KNOWN + path, WELL_KNOWN))) if is_there else ()
        self.url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}" if is_there else ""

    def document(self) -> dict[str, Any]:
        """Return the metadata document, as data to encode as JSON."""
        scopes = list(dict.fromkeys(scope for entry in self._settings.jwt for scope in entry.scopes))
        document: dict[str, Any] = {
            "resource": self._settings.resource,
            "authorization_servers": [entry.issuer for entry in self._settings.jwt],
            "bearer_methods_supported": ["header"],
        }
        return document | ({"scopes_supported": scopes} if scopes else {})
