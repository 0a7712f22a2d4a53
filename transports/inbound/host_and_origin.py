"""Check Host and Origin, and refuse requests that have passed this gateway before. Let web pages of allowed origins
read responses (CORS)."""

import functools
from collections.abc import Container, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from transports.inbound.http_requests_and_responses import Scope, Send, header_map, peer_of
from transports.inbound.unauthenticated_limits import MAX_LABEL_CHARS, Limits, client_network
from transports.inbound_port import HeaderList, Refused
from transports.jsonrpc import INVALID_REQUEST
from transports.via_header import MOST, PASSED, gateways_in

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_UNKNOWN_HOST: Final = "The Host header does not name this server: its operator gives its names as allowed_hosts."
_FORBIDDEN_ORIGIN: Final = (
    "The Origin of this request is not allowed: the operator gives those that are as allowed_origins."
)
_LOOP: Final = (
    "This request has passed this gateway already: the url of one of its servers leads back to it. Remove this server."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Check Host and Origin, so that web pages cannot reach a server on the user's own machine.

    MCP 2025-11-25, Transports §Security Warning (DNS rebinding).
    """

    hosts: frozenset[str] = frozenset()
    """The allowed host names; with `*`, any host. Empty: any host, or with `loopback` only the loopback names."""
    domains: tuple[str, ...] = ()
    """Further allowed suffixes of host names, each with its leading dot."""
    origins: frozenset[str] = frozenset()
    loopback: bool = True
    """Of use only if `hosts` is empty: True if only the loopback names are allowed then."""
    proxies: Container[str] = ()
    """The addresses of proxies whose forwarding headers are trusted."""
    single: frozenset[str] = frozenset()
    """The headers that may appear only once in a request: two credentials would be two callers."""
    hops: frozenset[str] = frozenset()
    """The names under which this gateway may stand in `Via` headers (RFC 9110 §7.6.3): a request with one of them has
    passed it before."""
    head_bytes: int = Limits().head_bytes
    """Maximum bytes of all headers. Checked here too, because the app may run in another HTTP server."""

    def headers(self, scope: Scope) -> dict[str, str]:
        """Return the request's headers, by lower-case name.

        Raises:
            Refused: 400, a header appears twice that may appear once; 431, the headers are too large (`header_map`).
        """
        return header_map(scope["headers"], self.single, self.head_bytes)

    def check(self, headers: Mapping[str, str]) -> None:
        """Check Host and Origin, and that the request has not passed this gateway before. Store in `PASSED` which
        gateways the request has passed. Raises `Refused`: 421, the host name is unknown; 403, the origin is not
        allowed; 508, a loop."""
        # Checked before the parsing, which caches its arguments.
        named = headers.get("host", "")
        if len(named) > MAX_LABEL_CHARS or not self._serves(_hostname(named)):
            raise Refused(421, INVALID_REQUEST, _UNKNOWN_HOST, reason="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and (len(origin) > MAX_LABEL_CHARS or not self._allows(origin, headers)):
            raise Refused(403, INVALID_REQUEST, _FORBIDDEN_ORIGIN, reason="origin_not_allowed")
        passed = gateways_in(via) if (via := headers.get("via")) else ()
        # Whoever names this gateway without having passed it harms only the own request.
        if not self.hops.isdisjoint(passed) or len(passed) > MOST:
            raise Refused(508, INVALID_REQUEST, _LOOP, reason="loop")
        PASSED.set(passed)

    @property
    def served_host(self) -> str:
        """Return a host name that `check` accepts. Requests from within the process use it as their Host."""
        named = sorted(host for host in self.hosts if "*" not in host)
        return named[0] if named else f"gateway{self.domains[0]}" if self.domains else "localhost"

    def _serves(self, host: str) -> bool:
        if self.hosts:
            return host in self.hosts or "*" in self.hosts or host.endswith(self.domains)
        return not self.loopback or host in _LOOPBACK

    def _allows(self, origin: str, headers: Mapping[str, str]) -> bool:
        if origin in self.origins or is_same_origin(headers):
            return True
        return self.loopback and not self.hosts and _hostname(_netloc(origin)) in _LOOPBACK

    def is_secure(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Return True if the client uses TLS: on the connection, or to a proxy that is trusted or on this machine."""
        if scope.get("scheme") == "https":
            return True
        if headers.get("x-forwarded-proto") != "https":
            return False
        peer = peer_of(scope)
        return peer in _LOOPBACK or peer in self.proxies

    def client_network(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the network (`network_of`) of the client's address. This is the address of the connection, or the one
        in `X-Forwarded-For` if a trusted proxy sent the request."""
        return client_network(peer_of(scope), headers, self.proxies)


def is_same_site(headers: Mapping[str, str]) -> bool:
    """Return False if a browser's headers show that another site caused this request; else True."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    return "origin" not in headers or is_same_origin(headers)


def check_same_site(headers: Mapping[str, str]) -> None:
    """Check the headers of a request for an event stream. Raises `Refused` (403) if a page of another site sent it."""
    if not is_same_site(headers):
        why = "Event streams are not served to pages of other sites."
        raise Refused(403, INVALID_REQUEST, why, reason="origin_not_allowed")


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return True if the Origin names the same host as the Host header."""
    origin = headers.get("origin", "")
    if len(origin) > MAX_LABEL_CHARS:
        return False
    netloc = _netloc(origin)
    return bool(netloc) and netloc.lower() == headers.get("host", "").lower()


def _netloc(url: str) -> str:
    """Return the host and port of a URL; empty if it is not a URL."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


@functools.lru_cache(maxsize=256)
def _hostname(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def readable_by(send: Send, origin: str) -> Send:
    """Return an ASGI `send` that adds the CORS headers by which web pages of `origin` may read the response. The origin
    must have been checked."""
    shared = origin_headers(origin)

    async def sending(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event["headers"], *shared]
        await send(event)

    return sending


def origin_headers(origin: str) -> HeaderList:
    """Return headers that let pages of `origin` read a response (Fetch §3.2, CORS)."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"mcp-session-id, mcp-gateway-session"),
        (b"vary", b"Origin"),
    ]
