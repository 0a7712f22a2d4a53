"""What a person finds who opens an address of the gateway in a browser: what it is, how to connect, whether it serves.

Only browsers get the page, by their `Accept`. It says what everyone finds out who sends a request: no server, no
session, no version. It sets no cookie and opens no session.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from gateway.config.client_snippets import TOKEN_VARIABLE, snippets
from gateway.policy.rate_limits import RateLimits
from gateway.serving.paths import ALL, HOME
from session_store import ANONYMOUS, StoreError
from transports.inbound.http import Guard, Receive, Scope, Send
from transports.inbound_port import Refused
from transports.soon import arrived

__all__ = ["HomePage", "is_for_people"]

_HOST_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]")
_MOST_HOST: Final = 255
_CACHED: Final = 32
_ACCEPT: Final = b"accept"


def is_for_people(scope: Scope) -> bool:
    """True for a request of a browser for a page: a GET that asks for HTML, which no MCP client does."""
    accepts = b",".join(value for name, value in scope["headers"] if name == _ACCEPT)
    return scope["method"] == "GET" and b"text/html" in accepts and b"text/event-stream" not in accepts


class HomePage:
    """An ASGI app that answers GET requests with the page.

    Requests count as those of a client without a credential: by address. `needs_token`: clients need a credential.
    `has_console`: the page leads to the console.
    """

    def __init__(self, guard: Guard, rates: RateLimits, *, needs_token: bool, has_console: bool) -> None:
        self._guard = guard
        self._rates = rates
        self._facts = {"needs_token": needs_token, "has_console": has_console, "variable": TOKEN_VARIABLE}
        folder = files("gateway.serving") / "templates"
        style = (folder / "home.css").read_text(encoding="utf-8")
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string((folder / "home.html").read_text(encoding="utf-8"))
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self._style = style
        self._headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": (
                f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'none'; frame-ancestors 'none'; "
                "base-uri 'none'"
            ),
            "Referrer-Policy": "no-referrer",
            "Vary": "Accept",
            "X-Content-Type-Options": "nosniff",
        }
        self._html = functools.lru_cache(maxsize=_CACHED)(self._rendered)

    async def serve(self, scope: Scope, receive: Receive, send: Send, *, serves: bool) -> None:
        """Answer a request for `/`, or for the path of an endpoint. `serves`: the gateway takes requests."""
        await (await self._answer(scope, serves))(scope, receive, send)

    async def _answer(self, scope: Scope, serves: bool) -> Response:
        try:
            headers = self._guard.headers(scope)
            self._guard.check(headers)
            await arrived(self._rates.message(ANONYMOUS, self._guard.client(scope, headers)))
        except Refused as refused:
            return PlainTextResponse(f"{refused}\n", refused.status, dict(refused.headers))
        except StoreError as error:
            return PlainTextResponse(f"{error}\n", 503, {"Retry-After": "5"})
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        html = self._html(self._base(scope, headers), root, path, serves)
        return HTMLResponse(html, headers=self._headers)

    def _base(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """The address that the browser has used. A host that is none is not repeated."""
        host = headers.get("host", "")
        if not host or len(host) > _MOST_HOST or not _HOST_CHARACTERS.issuperset(host):
            host = "HOST"
        return f"http{'s' if self._guard.is_secure(scope, headers) else ''}://{host}{scope.get('root_path', '')}"

    def _rendered(self, base: str, root: str, path: str, serves: bool) -> str:
        is_endpoint = path not in HOME
        url = base + (path if is_endpoint else ALL)
        found = snippets(url, needs_token=bool(self._facts["needs_token"]))
        facts = {"url": url, "root": root, "serves": serves, "is_endpoint": is_endpoint, "snippets": found}
        return self._template.render(style=self._style, **facts, **self._facts)
