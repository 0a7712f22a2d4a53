"""Send requests of the gateway's own process, without a credential, for callers whom the gateway vouches for.

After that they are handled like all requests. Only the composition root makes an `InternalRequests`: whoever has one
can act as any principal.
"""

from collections.abc import Mapping
from typing import Any

from gateway.identity.authenticate import Authenticated
from gateway.identity.credential_claims import CredentialClaims
from session_store import Principal
from transports.inbound.in_process_client import InProcessClient, Reply
from transports.inbound.posts import VOUCHED_FOR


class InternalRequests:
    """Send requests in the name of any principal. `endpoints` are ASGI apps, by path. `host` is a host name that this
    gateway serves, like the others on its store."""

    def __init__(self, endpoints: Mapping[str, Any], *, host: str) -> None:
        self._endpoints = endpoints
        self._host = host

    def __call__(
        self,
        path: str,
        principal: Principal,
        claims: CredentialClaims | None,
        headers: Mapping[str, str],
        body: bytes,
        *,
        peer: str = "",
    ) -> Reply:
        """Begin a POST to the endpoint at `path`, and return its reply. `peer` is the address of who caused it."""
        inside = InProcessClient(self._endpoints[path], path, {VOUCHED_FOR: Authenticated(principal, claims)})
        return inside.ask("POST", {**headers, "host": self._host}, body, peer)
