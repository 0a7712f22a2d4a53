"""Define the settings of authentication: issuers of tokens, trusted proxies, and digests of API keys."""

import ipaddress
import itertools
import re
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from gateway.config.settings_base import Frozen, fault_of_header

API_KEY_ISSUER: Final = "api-key"
OPERATOR_ISSUER: Final = "operator"
"""The issuer of operators who try tools in sessions of their own."""
_RESERVED_ISSUERS: Final = (API_KEY_ISSUER, OPERATOR_ISSUER, "anonymous")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# Signatures with a public key only: with a shared secret whoever verifies can also sign.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class ClaimNames(Frozen):
    """Which claims of a token set facts of a session. A dotted name is a path into nested objects."""

    trust: str = ""
    """The claim that contains the trust."""
    workspace: str = ""
    """The claim that contains the workspace."""
    permissions: str = "scope"
    """The claim that contains the permissions, as a list or separated by spaces."""


class JwtSettings(Frozen):
    """One trusted issuer of access tokens."""

    issuer: str
    """The exact `iss` claim of its tokens."""
    audience: str
    """The required `aud` claim of its tokens."""
    jwks_url: str
    """URL of its public keys: https, or http on this machine."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Accepted signature algorithms."""
    scopes: tuple[str, ...] = ()
    """Scopes that every token must have."""
    claims: ClaimNames = ClaimNames()
    """Which claims set facts of a session."""

    @field_validator("jwks_url")
    @classmethod
    def _fetchable(cls, url: str) -> str:
        parts = urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise ValueError("must be an https:// URL: whoever can change these keys can impersonate every caller")
        return url


class ProxySettings(Frozen):
    """Trusted proxies that authenticate callers."""

    networks: tuple[str, ...]
    """Networks of the trusted proxies. Headers from other addresses are ignored."""
    subject_header: str = ""
    """The header that names the caller. Empty: the proxies do not name callers."""
    issuer: str = "proxy"
    """Prefix of the principals that the proxies name, as in `ISSUER:SUBJECT`."""
    permissions_header: str = ""
    """The header that contains the permissions, separated by commas or spaces."""

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the names, in lower case, of the headers in which proxies name the caller and the caller's
        permissions. A header that is not set is left out."""
        names = (self.subject_header, self.permissions_header)
        return tuple(name.lower() for name in names if name)

    @field_validator("subject_header", "permissions_header")
    @classmethod
    def _is_header(cls, name: str) -> str:
        if name and (fault := fault_of_header(name)):
            raise ValueError(fault)
        return name

    @model_validator(mode="after")
    def _names_the_principal(self) -> Self:
        if self.headers and not self.subject_header:
            raise ValueError(
                "subject_header is missing: permissions_header has no effect for a caller that the proxy does not name"
            )
        if len(set(self.headers)) != len(self.headers):
            raise ValueError("two settings name the same header: give each its own")
        return self

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class AuthSettings(Frozen):
    """How callers authenticate, in addition to API keys."""

    jwt: tuple[JwtSettings, ...] = ()
    """Trusted issuers of access tokens."""
    resource: str = ""
    """The URL at which clients know this gateway (RFC 9728 `resource`). Clients need it to find the authorization
    server."""
    proxies: ProxySettings | None = None
    """Trusted proxies that authenticate callers."""

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> Self:
        issuers = [entry.issuer for entry in self.jwt]
        if len(set(issuers)) != len(issuers):
            raise ValueError("two entries of jwt have the same issuer")
        issuers = [*_RESERVED_ISSUERS, *issuers, *([self.proxies.issuer] if self.proxies is not None else ())]
        for one, other in itertools.permutations(issuers, 2):
            if one == other or one.startswith(f"{other}:"):
                raise ValueError(
                    f"issuers {one!r} and {other!r} could give two principals the same name, ISSUER:SUBJECT: give "
                    "proxies another issuer, or use a separate gateway for one of them"
                )
        return self

    @property
    def issuers(self) -> tuple[str, ...]:
        """Return the issuers of the principals that access tokens and proxies name. The issuer of API keys is not among
        them."""
        proxied = self.proxies is not None and self.proxies.subject_header
        return (*(entry.issuer for entry in self.jwt), *([self.proxies.issuer] if self.proxies and proxied else ()))


def _one_or_several(keys: Any) -> Any:
    """Return the digests by key name, with a tuple also for a key that the file gives a single digest as text. Return a
    value that is not an object unchanged."""
    if not isinstance(keys, dict):
        return keys
    return {name: (given,) if isinstance(given, str) else given for name, given in keys.items()}


def _digests(keys: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Check the digests of keys, and return them unchanged. Raises `ValueError` if a value is not a digest: it may be
    the key itself."""
    for name, given in keys.items():
        if not given or not all(_SHA256.fullmatch(digest) for digest in given):
            raise ValueError(f"{name}: must be the SHA-256 of the key as 64 lower-case hex digits, not the key itself")
    return keys


KeyDigestSettings = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_one_or_several), AfterValidator(_digests)]
"""SHA-256 digests of keys, by key name. A single digest need not be in a list."""
