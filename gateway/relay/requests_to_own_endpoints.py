"""Send requests of this process to its own endpoints, in the name of any principal and without a credential.

They are handled like requests of clients. Only the composition root may create an `InternalRequests`, because its user
can act as any principal.
"""

from collections.abc import Mapping
from typing import Any

from gateway.identity.authenticate import Authenticated
from gateway.identity.credential_claims import CredentialClaims
from session_store import Principal
from transports.inbound.in_process_client import InProcessClient, Reply
from transports.inbound.post_parsing import VOUCHED_FOR


class InternalRequests:
    """Send requests in the name of any principal. `endpoints` are the ASGI apps by path. `host` goes into the `Host`
    header: a name that this gateway and all others on its store serve."""

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
        """Begin a POST to the endpoint at `path`, and return its reply. `peer` is the address of the client on whose
        behalf the request is sent."""
        inside = InProcessClient(self._endpoints[path], path, {VOUCHED_FOR: Authenticated(principal, claims)})
        return inside.ask("POST", {**headers, "host": self._host}, body, peer)
