"""Read and write the tokens (in headers and `_meta`) and cookies that name a session in requests and responses.
Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.context.session_facts import SESSION_KEY
from gateway.sessions.client_chosen_keys import KEY_META, session_key
from gateway.sessions.returning_clients import agent_of, implementation_of
from session_store import ClientFacts, KeyRing, Purpose, Session, TokenCodec
from transports.era import LEGACY
from transports.inbound_port import Request

LEGACY_HEADER: Final = "mcp-session-id"
GATEWAY_HEADER: Final = "mcp-gateway-session"
COOKIE: Final = "mcp_session_id"
SECURE_COOKIE: Final = "__Host-mcp_session_id"
NEW: Final = "new"
"""Value sent in place of a token: the client asks for a session of its own, and will send back the token it gets."""


def explicit_token(request: Request) -> str | None:
    """Return the session token in a header of the request, else in its `_meta`; None if neither has one. A modern
    client's `Mcp-Session-Id` is ignored: MCP 2026-07-28 has no such header."""
    if request.era is LEGACY and (token := request.headers.get(LEGACY_HEADER)) is not None:
        return token
    if (token := request.headers.get(GATEWAY_HEADER)) is not None:
        return None if token == NEW else token
    carried = request.meta.get(SESSION_KEY)
    return None if carried is None or carried == NEW else str(carried)


def names_token(request: Request) -> bool:
    """Return True if a header of the request has a session token, so that a token in the body would be ignored."""
    if request.era is LEGACY and LEGACY_HEADER in request.headers:
        return True
    return request.headers.get(GATEWAY_HEADER, NEW) != NEW


def asks_for_new(request: Request) -> bool:
    """Return True if a request without a token asks for a new session that no other client shares (`NEW`)."""
    return NEW in (request.headers.get(GATEWAY_HEADER), request.meta.get(SESSION_KEY))


def brings_token(request: Request) -> bool:
    """Return True if a request carries a session token, or a cookie with the name of this gateway's session cookie."""
    return explicit_token(request) is not None or bool(cookies_of(request))


def cookies_of(request: Request) -> list[str]:
    """Return the values of the gateway's cookie in a request, four at most."""
    return cookie_values(request.headers.get("cookie", ""), secure=request.secure)


def cookie_values(header: str, *, secure: bool) -> list[str]:
    """Return the values of the gateway's session cookie in the text of a `Cookie` header, four at most (RFC 6265 §5.4).
    With `secure` (behind TLS), only the `__Host-` cookie counts."""
    wanted = SECURE_COOKIE if secure else COOKIE
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for name, _, value in pairs if name == wanted][:4]


def without_tokens(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return a request's raw headers with the values of tokens and cookies blanked, but not removed."""
    return [(name, _BLANK[name](value) if name in _BLANK else value) for name, value in headers]


def _without_token(value: bytes) -> bytes:
    return value if value == NEW.encode() else b""


def _without_cookies(value: bytes) -> bytes:
    text = value.decode("latin-1")
    ours = ((SECURE_COOKIE, True), (COOKIE, False))
    return b"; ".join(f"{name}=".encode() for name, secure in ours if cookie_values(text, secure=secure))


_BLANK: Final[Mapping[bytes, Callable[[bytes], bytes]]] = {
    LEGACY_HEADER.encode(): _without_token,
    GATEWAY_HEADER.encode(): _without_token,
    b"cookie": _without_cookies,
}


def modern_client(request: Request) -> ClientFacts:
    """Return the client's name and version from the `_meta` of a modern request (MCP 2026-07-28)."""
    return client_facts(request.meta.get("io.modelcontextprotocol/clientInfo"), request.protocol_version)


def client_facts(info: Any, protocol_version: str, initialize_params: bytes = b"") -> ClientFacts:
    """Return the facts that a client reports about itself. `info` is its `clientInfo`: the name is cut to 128
    characters, and the version to 64. `initialize_params` are the params of its `initialize`; empty for a modern
    client."""
    name, version = (info.get("name"), info.get("version")) if isinstance(info, dict) else ("", "")
    return ClientFacts(
        name=str(name or "")[:128],
        version=str(version or "")[:64],
        protocol_version=protocol_version,
        initialize_params=initialize_params,
    )


def same_client(session: Session, request: Request, facts: ClientFacts) -> bool:
    """Return True if a session belongs to a legacy client with the name in `facts`, at the request's endpoint."""
    return session.client.name == facts.name and session.endpoint == request.endpoint and session.era == LEGACY


class Carriers:
    """Signs and verifies tokens and cookies, and builds the response headers that carry them. `cookie`: the gateway
    uses cookies. `key_headers`: request headers that may carry a session key; the first one found counts."""

    def __init__(
        self,
        ring: KeyRing,
        *,
        cookie: bool,
        key_headers: Sequence[str] = (),
    ) -> None:
        self.tokens = TokenCodec(ring, Purpose.TOKEN)
        self.cookies = TokenCodec(ring, Purpose.COOKIE)
        self.uses_cookies = cookie
        self._key_headers = tuple(name.lower() for name in key_headers)

    def session_key(self, request: Request) -> str | None:
        """Return the session key of a request; None if it has none. Raises `Refused`: 400, the key is invalid."""
        return session_key(request, self._key_headers)

    def has_key(self, request: Request) -> bool:
        """Return True if a request carries a session key, valid or not."""
        for name in self._key_headers:  # `any` with a generator takes twice as long
            if name in request.headers:
                return True
        return KEY_META in request.meta

    def is_in_result(self, request: Request, *, opened: bool) -> bool:
        """Return True if the result's `_meta` must carry the session's token. `opened` is True if this request has
        opened the session.

        Most clients never read the token there, and some compare whole results. So it is sent in a result once, and
        only to a client that has no other way to get it."""
        if not opened or self.has_key(request) or GATEWAY_HEADER in request.headers:
            return False
        if not self.uses_cookies:
            return True
        implementation = implementation_of(agent_of(request), modern_client(request).name)
        keeps_cookies = implementation is not None and implementation.keeps_cookies
        return not keeps_cookies and "cookie" not in request.headers

    def token(self, session: Session) -> str:
        """Return the session token that clients get: the signed session id. For a child session, return its parent's
        token."""
        return self.tokens.sign(session.parent or session.id)

    def headers(self, session: Session, request: Request, *, cookie_held: bool) -> list[tuple[bytes, bytes]]:
        """Return the response headers with the session's token and cookie. Legacy clients get them only with the answer
        to `initialize`, or by HTTP+SSE with their event stream. A client that has the cookie already (`cookie_held`)
        gets no cookie. Nor does a client with a session key: it may have other sessions, under other keys.

        A page of another site gets no cookie either. The gateway ignores the cookie that such a page sends
        (`SessionResolver`), and a new one would replace the cookie of the user's session."""
        token = self.token(session).encode()
        headers = [(b"cache-control", b"no-store"), (GATEWAY_HEADER.encode(), token)]
        if request.era is LEGACY:
            headers.append((LEGACY_HEADER.encode(), token))
        if self.uses_cookies and request.same_site and not cookie_held and not self.has_key(request):
            name, extra = (SECURE_COOKIE, "; Secure") if request.secure else (COOKIE, "")
            value = self.cookies.sign(session.parent or session.id)
            headers.append((b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{extra}".encode()))
        return headers
