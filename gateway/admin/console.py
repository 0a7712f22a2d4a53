"""The console: pages made here, sent again piece by piece as things change. Works without scripts as well."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic, time
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.admin.auth import Access
from gateway.admin.charts import charts_of
from gateway.admin.formatting import amount, clock, span
from gateway.admin.operations import Operations
from gateway.admin.operators import ONLY, Ambiguous, NoSuch, SessionQuery
from gateway.admin.sign_in_attempts import TooManyAttempts
from session_store import StoreUnavailable
from transports.inbound.http import Guard, read_body
from transports.inbound_port import Refused

__all__ = ["Console"]

EVERY_S: Final = 2.0
_REST: Final = 10
"""A page that takes long to make, because much is searched, is made so much less often: calls come first."""

_PAGE: Final = 50
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

View = Callable[["Console", Request], Awaitable[dict[str, Any]]]
Work = Callable[[Request], Awaitable[Response]]
_LONGEST_FORM: Final = 16 << 10


class Console:
    """The pages."""

    def __init__(self, operations: Operations, access: Access) -> None:
        self._operations = operations
        self._access = access
        self._templates = Environment(
            loader=PackageLoader("gateway.admin"),
            autoescape=select_autoescape(["html"]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"span": span, "bytes": amount, "clock": clock}

    @property
    def routes(self) -> list[Route | Mount]:
        """The console's routes for Starlette."""
        pages = [Route(path, _told_why(self._page(name)), methods=["GET"]) for path, name in _PAGES.items()]
        lives = [Route(f"{path}/live", _told_why(self._live(name)), methods=["GET"]) for path, name in _PAGES.items()]
        return [
            Route("/admin/sign-in", _told_why(self._sign_in), methods=["GET", "POST"]),
            Route("/admin/sign-out", _told_why(self._sign_out), methods=["POST"]),
            Route("/admin/sessions/{session}/end", _told_why(self._end), methods=["POST"]),
            Route("/admin/replicas/{replica}/{deed}", _told_why(self._drain), methods=["POST"]),
            Mount("/admin/static", StaticFiles(packages=[("gateway.admin", "static")])),
            *lives,
            *pages,
        ]

    # -- pages

    def _page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def page(request: Request) -> Response:
            operator = await self._access.operator(request)
            if operator is None:
                return RedirectResponse(f"{_root(request)}/admin/sign-in", 303, headers=_HEADERS)
            status = 200
            try:
                facts = await _VIEWS[name](self, request)
            except NoSuch as error:
                name_, facts, status = "gone", {"words": str(error)}, 404
            except Ambiguous as error:
                name_, facts, status = "gone", {"words": str(error)}, 409
            except StoreUnavailable:
                name_, facts, status = "gone", {"words": "The session store does not answer. Try again."}, 503
            else:
                name_ = name
            query = f"?{request.url.query}" if request.url.query else ""
            shown = self._render(
                f"{name_}.html", request, operator=operator, page=name, live=f"{request.url.path}/live{query}", **facts
            )
            return HTMLResponse(shown, status, headers=_HEADERS)

        return page

    def _live(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def live(request: Request) -> Response:
            if await self._access.operator(request) is None:
                return Response(status_code=401, headers=_HEADERS)
            stream = self._changes(name, request)
            return StreamingResponse(
                stream, media_type="text/event-stream", headers=_HEADERS | {"X-Accel-Buffering": "no"}
            )

        return live

    async def _changes(self, name: str, request: Request) -> AsyncIterator[str]:
        """The page's live part, when it is not what it was. A replica that drains ends it: the browser comes back."""
        before = ""
        while True:
            began = monotonic()
            try:
                if await self._access.operator(request) is None:
                    return
                shown = self._render(f"{name}_live.html", request, **await _VIEWS[name](self, request))
            except TooManyAttempts:
                return
            except (NoSuch, Ambiguous) as error:
                shown = self._render("gone_live.html", request, words=str(error))
            except StoreUnavailable:
                shown = self._render("gone_live.html", request, words="The session store does not answer.")
            if shown != before:
                yield f"data: {json.dumps(shown)}\n\n"
            else:
                yield ": nothing new\n\n"
            before = shown
            if self._operations.is_draining:
                return
            await asyncio.sleep(max(EVERY_S, (monotonic() - began) * _REST))

    def _render(self, template: str, request: Request, **facts: Any) -> str:
        return self._templates.get_template(template).render(root=_root(request), **facts)

    async def _overview(self, _: Request) -> dict[str, Any]:
        replicas, failing, events = await asyncio.gather(
            self._operations.replicas(),
            self._operations.sessions(SessionQuery(only="failing", limit=10)),
            self._operations.events(15),
        )
        return {
            "replicas": replicas,
            "charts": charts_of(replicas, time()),
            "failing": failing.sessions,
            "events": events,
            "totals": {
                "sessions": sum(r.sessions for r in replicas),
                "in_flight": sum(r.in_flight for r in replicas),
                "processes": sum(r.processes for r in replicas),
                "calls": sum(r.calls for r in replicas),
                "failed": sum(r.failed for r in replicas),
                "restarts": sum(r.restarts for r in replicas),
            },
        }

    async def _sessions(self, request: Request) -> dict[str, Any]:
        query, only = request.query_params.get("q", ""), request.query_params.get("only", "all")
        after = request.query_params.get("after", "")
        wanted = SessionQuery(query=query, only=ONLY.get(only, "all"), limit=_PAGE, after=after)
        page = await self._operations.sessions(wanted)
        more = urlencode({"q": query, "only": only, "after": page.after}) if page.after else ""
        return {"sessions": page.sessions, "query": query, "only": only, "more": more, "after": after}

    async def _session(self, request: Request) -> dict[str, Any]:
        session = request.path_params["session"]
        row, events = await asyncio.gather(self._operations.session(session), self._operations.events(20, session))
        return {"session": row, "events": events}

    async def _events(self, request: Request) -> dict[str, Any]:
        session = request.query_params.get("session", "")
        return {"events": await self._operations.events(200, session), "session": session}

    # -- deeds

    async def _sign_in(self, request: Request) -> Response:
        wrong = False
        if request.method == "POST" and Guard.same_site(request.headers):
            response: Response = RedirectResponse(f"{_root(request)}/admin", 303, headers=_HEADERS)
            if await self._access.sign_in(request, response, await _key_of(request)):
                return response
            wrong = True
        shown = self._render("sign_in.html", request, wrong=wrong, operator=None, page="sign_in", live="")
        return HTMLResponse(shown, 403 if wrong else 200, headers=_HEADERS)

    async def _sign_out(self, request: Request) -> Response:
        response = RedirectResponse(f"{_root(request)}/admin/sign-in", 303, headers=_HEADERS)
        await self._access.sign_out(request, response)
        return response

    async def _end(self, request: Request) -> Response:
        operator = await self._access.operator(request)
        if operator is None:
            return Response(status_code=403, headers=_HEADERS)
        try:
            await self._operations.end(request.path_params["session"], operator)
        except (NoSuch, Ambiguous, StoreUnavailable) as error:
            return self._failed(request, operator, str(error))
        return RedirectResponse(f"{_root(request)}/admin/sessions", 303, headers=_HEADERS)

    async def _drain(self, request: Request) -> Response:
        operator, deed = await self._access.operator(request), request.path_params["deed"]
        if operator is None or deed not in ("drain", "admit"):
            return Response(status_code=403 if operator is None else 404, headers=_HEADERS)
        try:
            order = self._operations.drain if deed == "drain" else self._operations.admit
            await order(request.path_params["replica"], operator)
        except (NoSuch, Ambiguous, StoreUnavailable) as error:
            return self._failed(request, operator, str(error))
        return RedirectResponse(f"{_root(request)}/admin", 303, headers=_HEADERS)

    def _failed(self, request: Request, operator: str, words: str) -> Response:
        shown = self._render("gone.html", request, operator=operator, page="gone", live="", words=words)
        return HTMLResponse(shown, 409, headers=_HEADERS)


_PAGES: Final = {
    "/admin": "overview",
    "/admin/sessions": "sessions",
    "/admin/sessions/{session}": "session",
    "/admin/events": "events",
}
_VIEWS: Final[dict[str, View]] = {
    "overview": Console._overview,
    "sessions": Console._sessions,
    "session": Console._session,
    "events": Console._events,
}


def _told_why(work: Work) -> Work:
    """The same work; a refusal that comes before sign-in is known is answered as plain text."""

    async def endpoint(request: Request) -> Response:
        try:
            return await work(request)
        except TooManyAttempts as error:
            more = {"Retry-After": f"{error.wait_s:.0f}"}
            return PlainTextResponse(f"{str(error).capitalize()}.", 429, headers=_HEADERS | more)
        except StoreUnavailable:
            text = "The session store does not answer: whether you are signed in cannot be known. Try again."
            return PlainTextResponse(text, 503, headers=_HEADERS | {"Retry-After": "1"})
        except Refused as refused:
            return PlainTextResponse(str(refused), refused.status, headers=_HEADERS)

    return endpoint


async def _key_of(request: Request) -> str:
    """What the form of the sign-in page holds. Raises `Refused`: more than such a form has."""
    body = await read_body(request.receive, request.headers, _LONGEST_FORM)
    return parse_qs((body or b"").decode("utf-8", "replace")).get("key", [""])[0].strip()


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))
