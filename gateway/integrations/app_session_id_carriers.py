"""Read the session id that a client of an app sends, and build the response headers that send it to a client. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gateway.sessions.token_carriers import COOKIE, GATEWAY_HEADER, SECURE_COOKIE, cookie_values
from session_store import KeyRing, Purpose, TokenCodec
from transports.inbound.host_and_origin import Guard, is_same_site
from transports.inbound.http_requests_and_responses import Scope, header_map
from transports.inbound_port import HeaderList, Refused

_HEADER: Final = GATEWAY_HEADER.encode()
_READ: Final = frozenset({_HEADER, b"cookie", b"host", b"origin", b"sec-fetch-site", b"x-forwarded-proto"})
_VARY: Final = f"Cookie, {GATEWAY_HEADER.title()}".encode()
_guard: Final = Guard()


class AppCarriers:
    """Read and write the places where a client of an app sends its session id: the header and the cookie. The ids are
    signed; a gateway with the same keys accepts them, too. `cookie`: False if only the header is used."""

    def __init__(self, ring: KeyRing, *, cookie: bool) -> None:
        self._tokens = TokenCodec(ring, Purpose.TOKEN)
        self._cookies = TokenCodec(ring, Purpose.COOKIE)
        self._uses_cookies = cookie

    def session_ids(self, scope: Scope) -> Sequence[str]:
        """Return the session ids that a request carries: the id in the header, else the ids in cookies. Ids without a
        valid signature are left out. Cookies are ignored if another site caused the request.

        Raises:
            Refused: 400, the header appears twice.
        """
        headers = _read(scope) if has_header(scope) else _readable(scope)
        if (token := headers.get(GATEWAY_HEADER)) is not None:
            named = self._tokens.verify(token)
            return () if named is None else (named,)
        if not self._uses_cookies or not is_same_site(headers):
            return ()
        return self._in_cookies(scope, headers)

    def _in_cookies(self, scope: Scope, headers: Mapping[str, str]) -> Sequence[str]:
        values = cookie_values(headers.get("cookie", ""), secure=_is_secure(scope, headers))
        return tuple(found for value in values if (found := self._cookies.verify(value)) is not None)

    def token(self, session_id: str) -> str:
        """Return the signed session id, as it is sent in the header."""
        return self._tokens.sign(session_id)

    def giving(self, scope: Scope, session_id: str) -> HeaderList:
        """Return the response headers that send a new session's id to the client.

        If another site caused the request, the cookie in the request was ignored. That cookie is not replaced:
        otherwise any web page could make a visitor lose the session.
        """
        headers = _readable(scope)
        given = [(_HEADER, self.token(session_id).encode())]
        if self._uses_cookies and (is_same_site(headers) or not self._in_cookies(scope, headers)):
            given.append(_cookie(scope, headers, self._cookies.sign(session_id)))
        return given

    def taking(self, scope: Scope, session_id: str) -> HeaderList:
        """Return the response headers that delete the client's cookie, because this session has ended. Empty if the
        request has no cookie of this session."""
        headers = _readable(scope)
        return [_cookie(scope, headers, "", "; Max-Age=0")] if session_id in self._in_cookies(scope, headers) else []


def has_header(scope: Scope) -> bool:
    """Return True if the request has the header for a session id. The id in it may be invalid."""
    for name, _ in scope["headers"]:  # `any` with a generator takes twice as long
        if name == _HEADER:
            return True
    return False


def _read(scope: Scope) -> dict[str, str]:
    """Return the request headers that are needed to find the session. Raises `Refused`: one of them appears twice."""
    return header_map([pair for pair in scope["headers"] if pair[0] in _READ])


def _readable(scope: Scope) -> dict[str, str]:
    """Return the request headers that are needed to find the session; empty if one of them appears twice."""
    try:
        return _read(scope)
    except Refused:
        return {}


def _is_secure(scope: Scope, headers: Mapping[str, str]) -> bool:
    return scope.get("scheme") == "wss" or _guard.is_secure(scope, headers)


def _cookie(scope: Scope, headers: Mapping[str, str], value: str, more: str = "") -> tuple[bytes, bytes]:
    # The gateway's cookie is Strict, this one is Lax: a browser that follows a link from another site sends it. It is
    # ignored for that request, and `giving` sees that it must not be replaced.
    name, secure = (SECURE_COOKIE, "; Secure") if _is_secure(scope, headers) else (COOKIE, "")
    return b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{more}".encode()


def with_session_headers(headers: Iterable[tuple[bytes, bytes]], given: HeaderList) -> HeaderList:
    """Return the headers of a response that depends on its session. `headers`: those of the app. `given`: those that
    set or delete the client's session; may be empty.

    `Vary` names the header and the cookie, so that a shared cache does not send one session the response of another. A
    response with `given` headers must not be cached at all.
    """
    varied = _joined([*headers], b"vary", _VARY)
    return [*_joined(varied, b"cache-control", b"no-store"), *given] if given else varied


def _joined(headers: HeaderList, name: bytes, values: bytes) -> HeaderList:
    """Add `values` (a comma-separated list) to the header `name`, except those that it already has. Change `headers` in
    place, and return it."""
    places = [place for place, pair in enumerate(headers) if pair[0].lower() == name]
    if not places:
        headers.append((name, values))
        return headers
    present = [part.strip().lower() for place in places for part in headers[place][1].split(b",")]
    missing = b", ".join(value for value in values.split(b", ") if value.lower() not in present)
    if missing and b"*" not in present:
        key, value = headers[places[0]]
        headers[places[0]] = (key, value + b", " + missing)
    return headers
