"""How requests carry their session: tokens in headers and `_meta`, cookies, and what a client says of itself. Pure."""

from typing import Any, Final

from gateway.context import SESSION_KEY
from session_store import ClientFacts, Session
from transports.base import Era, Request

__all__ = [
    "COOKIE",
    "GATEWAY_HEADER",
    "LEGACY_HEADER",
    "SECURE_COOKIE",
    "client_facts",
    "cookies_of",
    "explicit_token",
    "modern_client",
    "same_client",
]

LEGACY_HEADER: Final = "mcp-session-id"
GATEWAY_HEADER: Final = "mcp-gateway-session"
COOKIE: Final = "mcp_session_id"
SECURE_COOKIE: Final = "__Host-mcp_session_id"


def explicit_token(request: Request) -> str | None:
    """The token of the first explicit carrier, or None. A modern client's `Mcp-Session-Id` is ignored (its spec)."""
    if request.era is Era.LEGACY and (token := request.headers.get(LEGACY_HEADER)) is not None:
        return token
    if (token := request.headers.get(GATEWAY_HEADER)) is not None:
        return token
    carried = request.meta.get(SESSION_KEY)
    return None if carried is None else str(carried)


def cookies_of(request: Request) -> list[str]:
    """Values of our cookie (RFC 6265 §5.4); only the one that TLS guards counts behind TLS."""
    wanted = SECURE_COOKIE if request.secure else COOKIE
    pairs = (part.strip().partition("=") for part in request.headers.get("cookie", "").split(";"))
    return [value for name, _, value in pairs if name == wanted][:4]


def modern_client(request: Request) -> ClientFacts:
    info = request.meta.get("io.modelcontextprotocol/clientInfo")
    return client_facts(info, request.protocol_version)


def client_facts(info: Any, protocol_version: str, initialize_params: bytes = b"") -> ClientFacts:
    """What a client says of itself, cut to a sane length."""
    name, version = (info.get("name"), info.get("version")) if isinstance(info, dict) else ("", "")
    return ClientFacts(
        name=str(name or "")[:128],
        version=str(version or "")[:64],
        protocol_version=protocol_version,
        initialize_params=initialize_params,
    )


def same_client(session: Session, request: Request, facts: ClientFacts) -> bool:
    return session.client.name == facts.name and session.endpoint == request.endpoint and session.era == Era.LEGACY
