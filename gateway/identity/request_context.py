"""Whose request it is and what it may: one value, made once for each request and passed on by hand.

It travels as an argument. A context variable would outlive the request: servers start the next request of a connection
in the context of the one before it.
"""

import msgspec

from gateway.identity.context_rules import CredentialClaims
from session_store import Principal

__all__ = ["RequestContext"]


class RequestContext(msgspec.Struct, frozen=True):
    """Who asks, the claims of this request's credential (None: it has none), and the request's correlation id."""

    principal: Principal
    claims: CredentialClaims | None
    correlation: str
