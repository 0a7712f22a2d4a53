"""Reads and writes the carriers of sessions: tokens in headers and `_meta`, cookies. Reads client names. Pure."""

from typing import Any, Final

from gateway.context.facts import SESSION_KEY
from session_store import ClientFacts, KeyRing, Purpose, Session, TokenCodec
from transports.era import Era
from transports.inbound_port import Request

__all__ = [
    "COOKIE",
    "GATEWAY_HEADER",
    "LEGACY_HEADER",
    "SECURE_COOKIE",
    "Carriers",
    "client_facts",
    "cookie_values",
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
    """The token of the first explicit carrier, or None. A modern client's `Mcp-Session-Id` is ignored: MCP 2026-07-28
    has no such header."""
    if request.era is Era.LEGACY and (token := request.headers.get(LEGACY_HEADER)) is not None:
        return token
    if (token := request.headers.get(GATEWAY_HEADER)) is not None:
        return token
    carried = request.meta.get(SESSION_KEY)
    return None if carried is None else str(carried)


def cookies_of(request: Request) -> list[str]:
    """Values of the gateway's cookie, as `cookie_values`."""
    return cookie_values(request.headers.get("cookie", ""), secure=request.secure)


def cookie_values(header: str, *, secure: bool) -> list[str]:
    """Values of the gateway's cookie, four at most (RFC 6265 §5.4). Behind TLS only the `__Host-` cookie counts."""
    wanted = SECURE_COOKIE if secure else COOKIE
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for name, _, value in pairs if name == wanted][:4]


def modern_client(request: Request) -> ClientFacts:
    """The client that the `_meta` of a modern request names."""
    info = request.meta.get("io.modelcontextprotocol/clientInfo")
    return client_facts(info, request.protocol_version)


def client_facts(info: Any, protocol_version: str, initialize_params: bytes = b"") -> ClientFacts:
    """Name and version that a client gives itself, cut to 128 and 64 characters."""
    name, version = (info.get("name"), info.get("version")) if isinstance(info, dict) else ("", "")
    return ClientFacts(
        name=str(name or "")[:128],
        version=str(version or "")[:64],
        protocol_version=protocol_version,
        initialize_params=initialize_params,
    )


def same_client(session: Session, request: Request, facts: ClientFacts) -> bool:
    """Whether a session belongs to a legacy client of that name at the endpoint of the request."""
    return session.client.name == facts.name and session.endpoint == request.endpoint and session.era == Era.LEGACY


class Carriers:
    """Signs and verifies tokens and cookies, and writes the headers that give them to a client."""

    def __init__(self, ring: KeyRing, *, cookie: bool) -> None:
        self.tokens = TokenCodec(ring, Purpose.TOKEN)
        self.cookies = TokenCodec(ring, Purpose.COOKIE)
        self._gives_cookies = cookie

    def token(self, session: Session) -> str:
        """The session token: the signed form of the id, the only one that clients get. The client of a child session
        carries the token of the parent."""
        return self.tokens.sign(session.parent or session.id)

    def headers(self, session: Session, request: Request, *, cookie_held: bool) -> list[tuple[bytes, bytes]]:
        """The headers that give a client its session. Legacy clients get them with the answer to `initialize` only."""
        token = self.token(session).encode()
        headers = [(b"cache-control", b"no-store"), (GATEWAY_HEADER.encode(), token)]
        if request.era is Era.LEGACY:
            headers.append((LEGACY_HEADER.encode(), token))
        if self._gives_cookies and not cookie_held:
            name, extra = (SECURE_COOKIE, "; Secure") if request.secure else (COOKIE, "")
            value = self.cookies.sign(session.parent or session.id)
            headers.append((b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{extra}".encode()))
        return headers
