"""Serve the console: each page of `gateway.admin.pages`, and an event stream that updates a page when its content
changes. The pages also work without scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.admin.auth import VALID_S, Access, HostNotAllowed, TooManyAttempts
from gateway.admin.formatting import amount, clock, moment, span, took
from gateway.admin.pages import console_pages
from gateway.admin.pages.page import BASE_URL, OPERATOR, Action, ConsolePage, posted_form
from gateway.admin.query_types import OperatorError
from gateway.admin.session_watches import MOST_REASON_CHARS
from gateway.admin.verb_handlers import Operations
from gateway.calls.live_session import WATCHED_S
from gateway.calls.messages_for_operators import MOST_FRAMES
from gateway.observability.escaped_text import visible
from gateway.version import __version__
from session_store import StoreUnavailable
from transports.background_tasks import Tasks
from transports.inbound.host_and_origin import is_same_site
from transports.inbound_port import Refused

if TYPE_CHECKING:
    from jinja2 import Environment  # with the first page

EVERY_S: Final = 2.0
"""Seconds between two updates of an open page."""

_REST: Final = 10
"""The pause between two updates is at least this many times as long as an update took. So calls of clients come
first."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

_WITH_IMAGES: Final = {
    "Content-Security-Policy": _HEADERS["Content-Security-Policy"].replace("img-src 'self'", "img-src 'self' data:")
}
"""The Content-Security-Policy of pages that show images from servers. It differs from that of other pages only in
allowing `data:` images."""

RouteHandler = Callable[[Request], Awaitable[Response]]
_HOME, _SIGN_IN = "/admin", "/admin/sign-in"
_STORE_IS_AWAY: Final = "The session store does not answer. Try again."


class Console:
    """Make the routes of the console, for operators who have signed in."""

    def __init__(self, operations: Operations, access: Access) -> None:
        self._operations = operations
        self._access = access
        self._pages = console_pages()
        self._navigation = [page for page in self._pages.values() if page.label]
        self._compiling = Tasks("templates of the console")
        self._is_compiled = False

    @property
    def routes(self) -> list[Route | Mount]:
        shown, live, actions = [], [], []
        for name, page in self._pages.items():
            shown.append(Route(page.path, self._explained(self._page(name, page)), methods=["GET"]))
            if page.is_live:
                live.append(Route(f"{page.path}/live", self._explained(self._live(name, page)), methods=["GET"]))
            for path, action in page.actions.items():
                actions.append(Route(path, self._explained(self._action(name, page, action)), methods=["POST"]))
        return [
            Route(_SIGN_IN, self._explained(self._sign_in), methods=["GET", "POST"]),
            Route(f"{_SIGN_IN}/{{token}}", self._explained(self._link), methods=["GET"]),
            Route("/admin/sign-out", self._explained(self._sign_out), methods=["POST"]),
            Route("/admin/", RedirectResponse("../admin")),  # relative: it names no host
            Mount("/admin/static", StaticFiles(packages=[("gateway.admin", "static")])),
            *actions,
            *live,
            *shown,
        ]

    def _explained(self, endpoint: RouteHandler) -> RouteHandler:
        """Wrap an endpoint of the console: check the request's Host header before it. Answer as plain text if the
        header is not allowed, the sign-in cannot be checked, too many wrong keys were sent, or the request is
        refused."""

        async def explained(request: Request) -> Response:
            try:
                self._access.check_host(request)
                await self._compiled()
                return await endpoint(request)
            except HostNotAllowed as error:
                return PlainTextResponse(str(error), 421, headers=_HEADERS)
            except TooManyAttempts as error:
                more = {"Retry-After": f"{error.wait_s:.0f}"}
                return PlainTextResponse(f"{str(error).capitalize()}.", 429, headers=_HEADERS | more)
            except StoreUnavailable:
                text = "The session store does not answer, so your sign-in cannot be checked. Try again."
                return PlainTextResponse(text, 503, headers=_HEADERS | {"Retry-After": "1"})
            except Refused as refused:
                return PlainTextResponse(str(refused), refused.status, headers=_HEADERS)

        return explained

    async def _compiled(self) -> None:
        """Compile all templates once, before the first page is served. This takes a quarter of a second, so it runs in
        a thread."""
        if self._is_compiled:
            return
        await self._compiling.share("templates", lambda: asyncio.to_thread(self._compile))
        self._is_compiled = True

    def _compile(self) -> None:
        for name in _environment().list_templates():
            _environment().get_template(name)

    # -- pages

    def _page(self, name: str, page: ConsolePage) -> RouteHandler:
        async def endpoint(request: Request) -> Response:
            operator = await self._access.operator(request)
            if operator is None:
                return _redirect(request, _SIGN_IN)
            template, status = f"pages/{name}", 200
            self._tell(request, operator)
            try:
                facts = await page.facts(self._operations, request)
            except (OperatorError, StoreUnavailable) as error:
                template, facts, status = _gone(error)
            query = f"?{request.url.query}" if request.url.query else ""
            stream = f"{request.url.path}/live{query}" if page.is_live else ""
            html = self._html(template, request, operator=operator, path=page.path, live=stream, **facts)
            return HTMLResponse(html, status, headers=_HEADERS)

        return endpoint

    def _live(self, name: str, page: ConsolePage) -> RouteHandler:
        async def endpoint(request: Request) -> Response:
            operator = await self._access.operator(request)
            if operator is None:
                return Response(status_code=401, headers=_HEADERS)
            self._tell(request, operator)
            stream = self._changes(name, page, request)
            return StreamingResponse(
                stream, media_type="text/event-stream", headers=_HEADERS | {"X-Accel-Buffering": "no"}
            )

        return endpoint

    async def _changes(self, name: str, page: ConsolePage, request: Request) -> AsyncIterator[str]:
        """Yield the live part of a page as an event each time that it has changed; in between, yield comments. End when
        the operator signs out, or when the replica drains: the browser then connects to another replica."""
        before = ""
        while True:
            began = monotonic()
            try:
                if await self._access.operator(request) is None:
                    return
                html = self._live_html(f"pages/{name}", request, **await page.facts(self._operations, request))
            except TooManyAttempts:
                return
            except (OperatorError, StoreUnavailable) as error:
                html = self._live_html("gone.html", request, message=_message(error))
            yield f"data: {json.dumps(html)}\n\n" if html != before else ": nothing new\n\n"
            before = html
            if self._operations.is_draining:
                return
            await asyncio.sleep(max(EVERY_S, (monotonic() - began) * _REST))

    def _tell(self, request: Request, operator: str) -> None:
        """Store the operator's name, and the gateway's URL as the browser knows it, in the request's scope."""
        request.scope[OPERATOR] = operator
        scheme = "https" if self._access.is_secure(request) else "http"
        request.scope[BASE_URL] = f"{scheme}://{request.headers.get('host', '')}{_root(request)}"

    def _html(self, template: str, request: Request, **facts: Any) -> str:
        page = _environment().get_template(template)
        return page.render(root=_root(request), navigation=self._navigation, **facts)

    def _live_html(self, template: str, request: Request, **facts: Any) -> str:
        page = _environment().get_template(template)
        return "".join(page.blocks["live"](page.new_context({"root": _root(request), **facts})))

    # -- actions

    def _action(self, name: str, page: ConsolePage, action: Action) -> RouteHandler:
        """Return the endpoint to which a form of the page `page` is posted. It carries out `action`. If `action`
        returns a path, it redirects to this path. If `action` returns variables, it renders the page with them;
        reloading the page then sends the form again."""

        async def endpoint(request: Request) -> Response:
            operator = await self._access.operator(request)
            if operator is None:
                return Response(status_code=403, headers=_HEADERS)
            template, status, headers = f"pages/{name}", 200, _HEADERS | _WITH_IMAGES
            try:
                facts = await action(self._operations, request, operator)
            except (OperatorError, StoreUnavailable) as error:
                template, facts, status = _gone(error)
                headers = _HEADERS
            if isinstance(facts, str):
                return _redirect(request, facts)
            html = self._html(template, request, operator=operator, path=page.path, live="", **facts)
            return HTMLResponse(html, status, headers=headers)

        return endpoint

    async def _sign_in(self, request: Request) -> Response:
        is_wrong = False
        if request.method == "POST" and is_same_site(request.headers):
            response, key = _redirect(request, _HOME), dict(await posted_form(request)).get("key", "").strip()
            if await self._access.sign_in(request, response, key):
                return response
            is_wrong = True
        return self._asking_for_key(request, "That is not an operator's key." if is_wrong else "")

    async def _link(self, request: Request) -> Response:
        """Sign in with the one-time link. HEAD requests and prefetches of browsers do not use the link up."""
        if request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", ""):
            return Response(status_code=503, headers=_HEADERS)
        # A page, and no redirect: the browser sends a strict cookie only where a page of ours has caused the request.
        home = f"{_root(request)}{_HOME}"
        response = HTMLResponse("Signed in.\n", headers=_HEADERS | {"Refresh": f"0; url={home}"})
        if await self._access.sign_in_by_link(request, response, request.path_params["token"]):
            return response
        why = f"This link has been used, or is older than {VALID_S / 60:.0f} minutes"
        return self._asking_for_key(
            request, f"{why}. Start the gateway again for a new one; this ends sessions in memory."
        )

    def _asking_for_key(self, request: Request, problem: str) -> Response:
        """Return the sign-in page. `problem`: why the last attempt failed; empty before the first one."""
        facts = {"problem": problem, "has_keys": self._access.has_keys}
        html = self._html("sign_in.html", request, operator=None, path="", live="", **facts)
        return HTMLResponse(html, 403 if problem else 200, headers=_HEADERS)

    async def _sign_out(self, request: Request) -> Response:
        response = _redirect(request, _SIGN_IN)
        if is_same_site(request.headers):
            await self._access.sign_out(request, response)
        return response


@cache
def _environment() -> "Environment":
    """Return the Jinja environment, with the templates of the pages and those in the folder `templates`. All consoles
    of a process share this environment, so each template is compiled once."""
    from jinja2 import ChoiceLoader, DictLoader, Environment, PackageLoader, StrictUndefined  # with the first page

    pages = {f"pages/{name}": page.template for name, page in console_pages().items()}
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("gateway.admin"), DictLoader(pages)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update({"span": span, "took": took, "bytes": amount, "clock": clock, "moment": moment})
    environment.filters["exact"] = escape  # what a form sends back is what was given
    environment.globals.update(
        version=__version__,
        most_frames=MOST_FRAMES,
        most_reason_chars=MOST_REASON_CHARS,
        watched_min=round(WATCHED_S / 60),
    )
    return environment


def _shown(value: Any) -> Any:
    """Return a template's value as it is inserted into a page. In a text, control characters and marks of text
    direction are escaped. Numbers and HTML markup stay unchanged."""
    return value if isinstance(value, int | float) or hasattr(value, "__html__") else visible(str(value))


def _message(error: Exception) -> str:
    return _STORE_IS_AWAY if isinstance(error, StoreUnavailable) else str(error)


def _gone(error: OperatorError | StoreUnavailable) -> tuple[str, dict[str, Any], int]:
    """Return the error page for an error of an operator's request: its template, the template's variables, and the HTTP
    status."""
    return "gone.html", {"message": _message(error)}, 503 if isinstance(error, StoreUnavailable) else error.status


def _redirect(request: Request, path: str) -> RedirectResponse:
    return RedirectResponse(f"{_root(request)}{path}", 303, headers=_HEADERS)


def _root(request: Request) -> str:
    """Return the path prefix under which a proxy or another app serves the gateway."""
    return str(request.scope.get("root_path", ""))
