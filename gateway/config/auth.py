"""Define the settings of authentication, operators and discovery: issuers of tokens, proxies, digests of keys, the
console, the audit trail, and what clients without a credential may find out.
"""

import ipaddress
import itertools
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from gateway.config.addresses import HostNames, ListenAddress, is_loopback
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
    clock_skew_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    """Maximum difference between its clock and the gateway's."""
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
    trust_header: str = ""
    """The header that contains the trust."""
    workspace_header: str = ""
    """The header that contains the workspace."""
    permissions_header: str = ""
    """The header that contains the permissions, separated by commas or spaces."""

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the names of the headers for the caller and its rights, in lower case."""
        names = (self.subject_header, self.trust_header, self.workspace_header, self.permissions_header)
        return tuple(name.lower() for name in names if name)

    @field_validator("subject_header", "trust_header", "workspace_header", "permissions_header")
    @classmethod
    def _is_header(cls, name: str) -> str:
        if name and (fault := fault_of_header(name)):
            raise ValueError(fault)
        return name

    @model_validator(mode="after")
    def _names_the_principal(self) -> Self:
        if self.headers and not self.subject_header:
            raise ValueError(
                "subject_header is missing: the other headers have no effect for a caller that the proxy does not name"
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
        """Return the issuers of principals, without the issuer for API keys."""
        proxied = self.proxies is not None and self.proxies.subject_header
        return (*(entry.issuer for entry in self.jwt), *([self.proxies.issuer] if self.proxies and proxied else ()))


def _one_or_several(keys: Any) -> Any:
    """Return lists of digests by key name. A single digest need not be in a list."""
    if not isinstance(keys, dict):
        return keys
    return {name: (given,) if isinstance(given, str) else given for name, given in keys.items()}


def _digests(keys: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the digests by key name. Raises `ValueError` if a value is not a digest: it may be the key itself."""
    for name, given in keys.items():
        if not given or not all(_SHA256.fullmatch(digest) for digest in given):
            raise ValueError(f"{name}: must be the SHA-256 of the key as 64 lower-case hex digits, not the key itself")
    return keys


KeyDigestSettings = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_one_or_several), AfterValidator(_digests)]
"""SHA-256 digests of keys, by key name. A single digest need not be in a list."""


class AuditSettings(Frozen):
    """Where audit events are written, in addition to the log."""

    to: tuple[str, ...] = ("store",)
    """`store`, `stderr`, the absolute path of a file, or several of these. The store keeps the newest 10,000 events (in
    memory 2,000) of each of five categories: operators' actions, sessions of named principals, refusals of named
    principals, their tool calls, and events of unauthenticated clients. A file gets them as lines of JSON. It is
    reopened for every write, so it can be rotated."""
    calls: bool = False
    """Also record each tool call: principal, workspace, trust, tool, outcome and duration, without the arguments."""
    arguments: Literal["none", "names", "values"] = "none"
    """Part of the arguments that recorded calls have: their names, which is safe, or also their values, cut at 2,000
    characters. `values` is for those who must show what was done, and may keep what users write: credentials of known
    names and forms are redacted, which is best effort. Calls with arguments do not take the fast path."""

    @model_validator(mode="after")
    def _has_calls(self) -> Self:
        if self.arguments != "none" and not self.calls:
            raise ValueError("arguments are those of recorded calls: set calls to true")
        return self

    @field_validator("to")
    @classmethod
    def _are_places(cls, places: tuple[str, ...]) -> tuple[str, ...]:
        for place in places:
            if place not in ("store", "stderr") and not place.startswith("/"):
                raise ValueError(f"{place!r} is neither store, stderr nor the absolute path of a file")
        if sum(place.startswith("/") for place in places) > 1:
            raise ValueError("give one file")
        return places

    @property
    def file(self) -> Path | None:
        """Return the file to which audit events are written; None if there is none."""
        return next((Path(place) for place in self.to if place.startswith("/")), None)


class AdminSettings(Frozen):
    """The operators' console, REST interface and metrics."""

    keys: KeyDigestSettings = Field(default={})
    """Operator name → SHA-256 of the operator's key as hex digits, or a list of them, as in `api_keys`. Empty: no
    REST interface, and no console, except through the one-time link that `run` shows on a terminal if no other machine
    reaches the console."""
    listen: ListenAddress = ""
    """`HOST:PORT` of a separate listener for console, REST and metrics; there, metrics need no key. Empty: they are
    served by the gateway's own listener. Worker n listens on a port that is higher by n."""
    allowed_hosts: HostNames = ()
    """Host names by which operators reach the console and the REST interface, without ports, beside those of
    `gateway.allowed_hosts`. `*.example.com` means all names below a domain, `*` any name. Addresses and `localhost`
    need no entry: a web page could only point a name at the gateway (DNS rebinding)."""
    try_tools: Literal["any", "own", "off"] | None = None
    """Where operators may call tools, from the console and by the REST interface: in `any` session, with the rights of
    that session; in their `own` ones only, as the principal `operator:NAME`; or `off`. The audit trail records each
    such call, with the operator's name. Default: `any` if the gateway listens on loopback, needs no credential of
    clients, and names no proxy, host name or other gateway (`auth.proxies`, `allowed_hosts`, `advertise`, `internal`),
    else `own`."""
    frames: Literal["any", "with_reason", "own", "off"] | None = None
    """The sessions whose JSON-RPC messages and stderr operators may watch, with arguments and results of calls, but
    without credentials: `any` session; their `own` ones (as for `try_tools`), and `with_reason` those of others too,
    each for 10 minutes and for the operator alone who has given the reason; or `off`. The audit trail records who has
    switched them on, and why. Default: `any` where that of `try_tools` is `any`, else `with_reason`."""


ALL_SERVERS: Final = "*"
"""The key of the card for `/mcp`, which serves all servers."""

_NAME: Final = r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class CardSettings(Frozen):
    """The card of one server: what everyone may know of it."""

    name: Annotated[str, Field(min_length=3, max_length=200, pattern=_NAME)]
    """The name in reverse-DNS form with one slash, for example `com.example/search`."""
    description: Annotated[str, Field(min_length=1, max_length=100)]
    """What the server does, in at most 100 characters."""
    version: Annotated[str, Field(min_length=1, max_length=255)] = "1.0.0"
    """The version of the server."""
    title: Annotated[str, Field(max_length=100)] = ""
    """A name for people."""


class DiscoverySettings(Frozen):
    """What clients without a credential may find out. Nothing about servers, unless there are cards."""

    url: str = ""
    """The address at which clients reach the gateway, without a path of a server, for example
    `https://mcp.example.com`. Required if there are cards."""
    publisher: str = ""
    """The domain in the identifiers of the catalog. Empty: the host of `url`."""
    cards: dict[str, CardSettings] = Field(default={})
    """Name of a server → its card. `*` is the card of `/mcp`, which serves all of them. A server without a card is not
    listed."""

    home_page: bool = True
    """Whether browsers that open `/` or the address of an endpoint get a page that says how to connect a client, and
    whether curl and the like get it at `/` as a text. It names no server and no session."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if not self.cards:
            return self
        parts = urlsplit(self.url)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        has_more = parts.query or parts.fragment or parts.username or parts.password  # a card is public
        if not parts.hostname or not (parts.scheme == "https" or is_local) or has_more:
            raise ValueError(
                f"discovery.url is {self.url!r}: cards need the address at which clients reach the gateway, with "
                "https, or http on this machine"
            )
        names = [card.name for card in self.cards.values()]
        if len({*names}) < len(names):
            raise ValueError("discovery.cards: two cards have the same name, which identifies a server")
        if not _DOMAIN.fullmatch(self.domain):
            raise ValueError(f"discovery.publisher: {self.domain!r} is not a domain, which identifiers need")
        return self

    @property
    def domain(self) -> str:
        """Return the domain for the identifiers in the catalog."""
        return self.publisher or urlsplit(self.url).hostname or ""
