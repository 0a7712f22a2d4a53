"""The principal and the claims of one request, as a value to pass as an argument.

A context variable would not be safe: servers start the next request of a connection in the context of the one before.
"""

import msgspec

from gateway.identity.credential_claims import CredentialClaims
from session_store import Principal


class RequestContext(msgspec.Struct, frozen=True):
    """The principal of a request, the claims of its credential, and its correlation id. It is passed on as an argument
    while the request is handled."""

    principal: Principal
    claims: CredentialClaims | None
    """The claims of its credential; None if it has none."""
    correlation: str
    """The correlation id of the request."""
    until: float = 0.0
    """The Unix time until which requests with the same head from the same address need no new authentication."""
