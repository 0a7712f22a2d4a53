"""Serve a page to people who open the gateway's address: what it is, how to connect a client, and whether it serves.

Browsers, known by their `Accept` header, get the page at `/` and at MCP endpoints. Other programs, such as curl, get a
text at `/` only, because endpoints answer programs as MCP demands. Page and text name no server, session or version,
set no cookie and open no session.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Final

from starlette.responses import HTMLResponse, PlainTextResponse, Response

from gateway.config.endpoint_paths import ALL, HEALTH, HOME, READY
from gateway.config.hosts.client_snippets import CREDENTIAL_VARIABLE, snippets
from gateway.policy.rate_limits import RateLimits
from gateway.serving.pages.html_pages import page_headers, rendered
from session_store import ANONYMOUS, StoreError
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_requests_and_responses import Receive, Scope, Send
from transports.inbound_port import Refused

_HOST_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]")
_MOST_HOST: Final = 255
_CACHED: Final = 32
_ACCEPT: Final = b"accept"


def is_for_people(scope: Scope) -> bool:
    """Return True if a browser asks for a page: by a GET that accepts HTML and no event stream."""
    accepts = b",".join(value for name, value in scope["headers"] if name == _ACCEPT)
    return scope["method"] == "GET" and b"text/html" in accepts and b"text/event-stream" not in accepts


def is_plain(scope: Scope) -> bool:
    """Return True for a GET without `Accept`, or one that accepts plain text or any type, and no event stream."""
    accepts = b",".join(value for name, value in scope["headers"] if name == _ACCEPT)
    takes_text = not accepts.strip() or b"*/*" in accepts or b"text/plain" in accepts
    return scope["method"] == "GET" and takes_text and b"text/event-stream" not in accepts


class HomePage:
    """Answer GET requests: with the page for people, at `/` and at MCP endpoints; with the text for other programs, at
    `/` only.

    The requests count against the rate limit of their address, as those of clients without a credential. `needs_token`:
    clients need a credential. `has_console`: the page links to the console.
    """

    def __init__(self, guard: Guard, rates: RateLimits, *, needs_token: bool, has_console: bool) -> None:
        self._guard = guard
        self._rates = rates
        self._facts = {"needs_token": needs_token, "has_console": has_console, "variable": CREDENTIAL_VARIABLE}
        self._headers = page_headers("form-action 'none'", referrer="no-referrer") | {"Vary": "Accept"}
        self._html = functools.lru_cache(maxsize=_CACHED)(self._rendered)

    async def serve(self, scope: Scope, receive: Receive, send: Send, *, serves: bool, as_text: bool = False) -> None:
        """Answer a request for `/` or an endpoint with the page, or with the text if `as_text`. `serves`: whether the
        gateway takes new requests now, which both say."""
        await (await self._answer(scope, serves, self._text if as_text else self._page))(scope, receive, send)

    async def _answer(self, scope: Scope, serves: bool, answer: Callable[[str, str, str, bool], Response]) -> Response:
        """Check the headers and the rate of a request. Return the response of `answer`, which gets the base URL, the
        root path, the path and `serves`; or an error if the request is refused."""
        try:
            headers = self._guard.headers(scope)
            self._guard.check(headers)
            await self._rates.count_message(ANONYMOUS, self._guard.client_network(scope, headers))
        except Refused as refused:
            return PlainTextResponse(f"{refused}\n", refused.status, dict(refused.headers))
        except StoreError as error:
            return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "5"})
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        return answer(self._base(scope, headers), root, path, serves)

    def _page(self, base: str, root: str, path: str, serves: bool) -> Response:
        return HTMLResponse(self._html(base, root, path, serves), headers=self._headers)

    def _text(self, base: str, root: str, path: str, serves: bool) -> Response:
        url = base + ALL
        lines = [
            "MCP Session Gateway: this address serves tools to MCP clients (https://modelcontextprotocol.io).",
            "The gateway serves requests." if serves else "The gateway takes no new sessions now.",
            "",
            f"endpoint   {url}",
            f"connect    mcp-session-gateway connect CLIENT --url {url}",
            *(
                ["credential Authorization: Bearer, with your API key or access token"]
                if self._facts["needs_token"]
                else []
            ),
            f"probes     {base}{HEALTH}  {base}{READY}",
            "in a browser, this address shows how to connect each client",
        ]
        headers = {name: self._headers[name] for name in ("Cache-Control", "Vary", "X-Content-Type-Options")}
        return PlainTextResponse("\n".join(lines) + "\n", headers=headers)

    def _base(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the base URL that the request was sent to, from its `Host` header. The page shows the URL: a missing
        or invalid host is replaced by the word `HOST`."""
        host = headers.get("host", "")
        if not host or len(host) > _MOST_HOST or not _HOST_CHARACTERS.issuperset(host):
            host = "HOST"
        return f"http{'s' if self._guard.is_secure(scope, headers) else ''}://{host}{scope.get('root_path', '')}"

    def _rendered(self, base: str, root: str, path: str, serves: bool) -> str:
        is_endpoint = path not in HOME
        url = base + (path if is_endpoint else ALL)
        found = snippets(url, needs_token=bool(self._facts["needs_token"]))
        facts = {"url": url, "root": root, "serves": serves, "is_endpoint": is_endpoint, "snippets": found}
        return rendered("home.html", **facts, **self._facts)
