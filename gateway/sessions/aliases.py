"""Names by which the store finds a session without its id: of an authenticated principal and its client. Pure."""

import json

from gateway.sessions.carriers import modern_client
from session_store import Principal
from transports.era import Era
from transports.inbound_port import Request

__all__ = ["default_alias", "reattach_alias"]


def default_alias(request: Request, principal: Principal) -> str | None:
    """The name of the default session of (principal, client): modern authenticated clients only."""
    if request.era is not Era.MODERN or principal.is_anonymous:
        return None
    return json.dumps(["default", principal.issuer, principal.subject, modern_client(request).name])


def reattach_alias(principal: Principal, client: str, endpoint: str) -> str | None:
    """What `initialize` resumes, where that is switched on."""
    return (
        None
        if principal.is_anonymous
        else json.dumps(["reattach", principal.issuer, principal.subject, client, endpoint])
    )
