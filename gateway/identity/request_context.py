"""Whose request it is and what it may: one value, made once for each request and passed on by hand.

It travels as an argument. A context variable would outlive the request: servers start the next request of a connection
in the context of the one before it.
"""

import msgspec

from gateway.identity.context_rules import CredentialClaims
from session_store import Principal

__all__ = ["RequestContext"]


class RequestContext(msgspec.Struct, frozen=True):
    """Who asks, what this request's credential grants (None: it says nothing), and the request's correlation id."""

    principal: Principal
    granted: CredentialClaims | None
    correlation: str
