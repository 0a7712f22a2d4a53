"""Aliases: names by which the store finds a session of an authenticated principal without its id. Pure."""

import json

from gateway.sessions.carriers import modern_client
from session_store import Principal
from transports.era import Era
from transports.inbound_port import Request

__all__ = ["default_alias", "reattach_alias"]


def default_alias(request: Request, principal: Principal) -> str | None:
    """The alias of the default session of a principal and a client. Only modern, authenticated clients have one."""
    if request.era is not Era.MODERN or principal.is_anonymous:
        return None
    return json.dumps(["default", principal.issuer, principal.subject, modern_client(request).name])


def reattach_alias(principal: Principal, client: str, endpoint: str) -> str | None:
    """The alias of the session that `initialize` resumes if re-attaching by principal is switched on. None for an
    anonymous client."""
    return (
        None
        if principal.is_anonymous
        else json.dumps(["reattach", principal.issuer, principal.subject, client, endpoint])
    )
