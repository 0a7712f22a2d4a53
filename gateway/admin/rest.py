"""The REST interface for operators, under `/admin/api`. Its description is made from the same table as its routes."""

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.admin.attempts import attempt_in, left
from gateway.admin.auth import Access
from gateway.admin.hosts import HostNotAllowed
from gateway.admin.openapi import Operation, described
from gateway.admin.operations import Operations
from gateway.admin.operators import (
    FILTERS,
    ONLY,
    SORTS,
    TASK_STATUSES,
    Ambiguous,
    NoSuch,
    OperatorError,
    Page,
    SessionFilter,
    SessionQuery,
    TaskPage,
    TaskQuery,
    TooLate,
    sort_named,
)
from gateway.admin.reports import SESSION_STATES, Attempt, CatalogPage, ReplicaReport, SessionRow, TaskRow, TriedCall
from gateway.admin.rest_frames import FRAMES, FrameRest
from gateway.admin.rest_insights import INSIGHTS, InsightRest
from gateway.admin.rest_parameters import SESSION, Problem, number
from gateway.admin.sign_in_attempts import TooManyAttempts
from gateway.sessions.returns import UnreturningClient
from session_store import StoreUnavailable
from transports.inbound.http import peer_of

__all__ = ["Problem", "Rest", "description"]

API: Final = "/admin/api"

_CHECKED_EVERY_S: Final = 1.0
"""How often it is checked that the operator of a stream is signed in."""


class Rest(InsightRest, FrameRest):
    """The routes."""

    def __init__(self, operations: Operations, access: Access) -> None:
        InsightRest.__init__(self, operations)
        FrameRest.__init__(self, lambda: operations.watches, lambda: operations.is_draining)
        self.operations = operations
        self.access = access

    @property
    def routes(self) -> list[Route]:
        """For Starlette."""
        paths: dict[str, dict[str, Operation]] = {}
        for operation in _OPERATIONS:
            paths.setdefault(operation.path, {})[operation.method] = operation
        described = Route(f"{API}/openapi.json", self._describe)
        return [
            described,
            *(Route(API + path, self._endpoint(ways), methods=list(ways)) for path, ways in paths.items()),
        ]

    async def _describe(self, request: Request) -> Response:
        return JSONResponse(description())

    def _endpoint(self, ways: dict[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                operator = await self._operator(request)
                operation = ways["GET" if request.method == "HEAD" else request.method]
                answer = await operation.work(self, request, operator)
            except Problem as problem:
                return _problem(problem.status, str(problem))
            except NoSuch as error:
                return _problem(404, str(error))
            except (Ambiguous, TooLate) as error:
                return _problem(409, str(error))
            except OperatorError as error:
                return _problem(400, str(error))
            except TooManyAttempts as error:
                return _problem(429, str(error), {"Retry-After": f"{error.wait_s:.0f}"})
            except StoreUnavailable:
                return _problem(503, "the session store does not answer; try again", {"Retry-After": "1"})
            if isinstance(answer, StreamingResponse):
                parts = self._while_signed_in(request, answer.body_iterator)
                return StreamingResponse(parts, media_type=answer.media_type, headers=_FRESH)
            if isinstance(answer, Response):
                return answer
            return Response(msgspec.json.encode(answer), media_type="application/json", headers=_FRESH)

        return endpoint

    async def _while_signed_in(self, request: Request, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """The parts of a stream, until its operator has signed out or what it shows is gone. Keys are those of the
        configuration, as long as this process runs."""
        checked = monotonic()
        with contextlib.suppress(OperatorError, StoreUnavailable):
            async for part in parts:
                if "authorization" not in request.headers and monotonic() - checked >= _CHECKED_EVERY_S:
                    if await self.access.operator(request) is None:
                        return
                    checked = monotonic()
                yield part

    async def _operator(self, request: Request) -> str:
        try:
            self.access.check_host(request)
        except HostNotAllowed as error:
            raise Problem(421, str(error)) from None
        operator = await self.access.operator(request)
        if operator is None:
            raise Problem(401, "send Authorization: Bearer with a key of gateway.admin.keys")
        return operator

    # -- what there is

    async def sessions(self, request: Request, _: str) -> Page:
        query = request.query_params
        if (only := query.get("only", "all")) not in ONLY:
            raise Problem(400, f"only: must be one of {', '.join(ONLY)}")
        given = {name: value for name in FILTERS if (value := query.get(name)) is not None}
        wanted = SessionQuery(
            query=query.get("q", ""),
            only=ONLY[only],
            limit=number(request, "limit", 50, 1_000),
            after=query.get("after", ""),
            sort=sort_named(query.get("sort", "")),
            which=SessionFilter.of(given) if given else None,
        )
        return await self.operations.sessions(wanted)

    async def session(self, request: Request, _: str) -> SessionRow:
        return await self.operations.session(request.path_params["session"])

    async def end(self, request: Request, operator: str) -> dict[str, str]:
        return {"ended": await self.operations.end(request.path_params["session"], operator)}

    async def end_all(self, request: Request, operator: str) -> dict[str, int]:
        given = request.query_params
        known = FILTERS
        # A parameter that is overlooked would end more sessions than were meant.
        if unknown := sorted(given.keys() - set(known)):
            raise Problem(400, f"{unknown[0]}: is no parameter; there are {', '.join(known)}")
        if len(given) < len(given.multi_items()):
            raise Problem(400, "give each parameter once")
        try:
            which = SessionFilter.of(dict(given))
        except OperatorError as error:
            raise Problem(400, str(error)) from None
        return {"ended": await self.operations.end_all(which, operator)}

    async def tasks(self, request: Request, _: str) -> TaskPage:
        query = request.query_params
        try:
            wanted = TaskQuery(
                query=query.get("q", ""),
                status=query.get("status", ""),
                limit=number(request, "limit", 50, 1_000),
                after=query.get("after", ""),
            )
        except OperatorError as error:
            raise Problem(400, str(error)) from None
        return await self.operations.tasks(wanted)

    async def task(self, request: Request, _: str) -> TaskRow:
        return await self.operations.task(request.path_params["task"])

    async def cancel_task(self, request: Request, operator: str) -> dict[str, str]:
        return {"cancelled": await self.operations.cancel_task(request.path_params["task"], operator)}

    async def catalog(self, request: Request, _: str) -> CatalogPage:
        query = request.query_params
        limit = number(request, "limit", 100, 1_000)
        return self.operations.tried.catalog.page(query.get("q", ""), server=query.get("server", ""), limit=limit)

    async def call(self, request: Request, operator: str) -> TriedCall:
        attempt = await attempt_in(request)
        return await self.operations.tried.call(attempt, operator, peer=peer_of(request.scope), left=left(request))

    async def replicas(self, _: Request, __: str) -> list[ReplicaReport]:
        return await self.operations.replicas()

    async def warnings(self, _: Request, __: str) -> list[UnreturningClient]:
        return await self.operations.warnings()

    async def drain(self, request: Request, operator: str) -> dict[str, str]:
        return {"drained": await self.operations.drain(request.path_params["replica"], operator)}

    async def admit(self, request: Request, operator: str) -> dict[str, str]:
        return {"admitted": await self.operations.admit(request.path_params["replica"], operator)}

    async def events(self, request: Request, _: str) -> Any:
        session = request.query_params.get("session", "")
        if "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(self._frames(session), media_type="text/event-stream", headers=_FRESH)
        return await self.operations.events(number(request, "limit", 100, 10_000), session)

    async def _frames(self, session: str) -> AsyncIterator[bytes]:
        yield b": what happens from now on\n\n"
        async for event in self.operations.follow(session):
            yield b"data: " + msgspec.json.encode(event) + b"\n\n"


_FRESH: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    body = {"status": status, "detail": detail}
    challenge = {"WWW-Authenticate": 'Bearer realm="mcp-session-gateway operators"'} if status == 401 else {}
    return JSONResponse(
        body, status, headers={**_FRESH, **challenge, **(headers or {})}, media_type="application/problem+json"
    )


_TASK: Final = ("task", "path", "How its id begins: 4 characters or more, as listed; or the id that its client has")
_REPLICA: Final = ("replica", "path", "How its name begins")
_FILTERS: Final = (
    ("principal", "query", "The principal, as listed"),
    ("client", "query", "The client's name, without its version"),
    ("workspace", "query", "The workspace"),
    ("server", "query", "The name of a server that the session uses"),
    ("state", "query", f"{', '.join(SESSION_STATES)} (no replica serves it until its client comes back)"),
    ("failing", "query", "true: sessions in which calls have failed"),
)
_OPERATIONS: Final[tuple[Operation, ...]] = (
    *INSIGHTS,
    *FRAMES,
    Operation(
        method="GET",
        path="/sessions",
        summary="Live sessions of all replicas that have every given value, page by page, with totals of all of them",
        work=Rest.sessions,
        gives=Page,
        takes=(
            (
                "q",
                "query",
                "Words in id, principal, client, workspace, endpoint, era, trust, owner, servers; or a correlation id",
            ),
            ("only", "query", "all, failing (the latest failure first), or busy (the most calls in flight first)"),
            *_FILTERS,
            ("sort", "query", f"{', '.join(SORTS)}: the highest or latest first, ids in their order (id by default)"),
            ("limit", "query", "Maximum number of items: 50 by default, at most 1000"),
            ("after", "query", "Begin behind this one: `after` of the page before, of the same filter and order"),
        ),
    ),
    Operation(
        method="GET",
        path="/sessions/{session}",
        summary="One session: its record, its processes, last failures, what its sandboxes refused, keys of its state",
        work=Rest.session,
        gives=SessionRow,
        takes=(SESSION,),
    ),
    Operation(
        method="DELETE",
        path="/sessions/{session}",
        summary="End a session at once, on every replica",
        work=Rest.end,
        gives=dict[str, str],
        takes=(SESSION,),
    ),
    Operation(
        method="DELETE",
        path="/sessions",
        summary="End all sessions that have every given value; at least one is required",
        work=Rest.end_all,
        gives=dict[str, int],
        takes=_FILTERS,
    ),
    Operation(
        method="GET",
        path="/tasks",
        summary="Tasks of all sessions, newest first, page by page; those that are over until they expire",
        work=Rest.tasks,
        gives=TaskPage,
        takes=(
            ("q", "query", "Words to find in principal, endpoint, server, tool or message; or how an id begins"),
            ("status", "query", f"Of this status only: {', '.join(TASK_STATUSES)}"),
            ("limit", "query", "Maximum number of items: 50 by default, at most 1000"),
            ("after", "query", "Begin behind this one: `after` of the page before"),
        ),
    ),
    Operation(
        method="GET",
        path="/tasks/{task}",
        summary="One task: who made it, what it calls, and what became of it",
        work=Rest.task,
        gives=TaskRow,
        takes=(_TASK,),
    ),
    Operation(
        method="DELETE",
        path="/tasks/{task}",
        summary="Cancel the call of a task on whichever replica runs it (409: it is over); its record stays",
        work=Rest.cancel_task,
        gives=dict[str, str],
        takes=(_TASK,),
    ),
    Operation(
        method="GET",
        path="/catalog",
        summary="The tools of all servers, with their schemas, as the servers have listed them to the gateway",
        work=Rest.catalog,
        gives=CatalogPage,
        takes=(
            ("q", "query", "Words in server, name, title, description"),
            ("server", "query", "The tools of this server only"),
            ("limit", "query", "Maximum number of items: 100 by default, at most 1000"),
        ),
    ),
    Operation(
        method="POST",
        path="/calls",
        summary="Call a tool, in a fresh session that ends after the call (or is kept), or in a live one",
        work=Rest.call,
        gives=TriedCall,
        sends=Attempt,
    ),
    Operation(
        method="GET",
        path="/replicas",
        summary="All replicas: what they hold, and their last five minutes, second by second",
        work=Rest.replicas,
        gives=list[ReplicaReport],
    ),
    Operation(
        method="GET",
        path="/warnings",
        summary="Clients that open sessions and return to none, each with the line of its configuration that mends it",
        work=Rest.warnings,
        gives=list[UnreturningClient],
    ),
    Operation(
        method="POST",
        path="/replicas/{replica}/drain",
        summary="Have a replica hand its sessions to the others and be not ready; returns when it has",
        work=Rest.drain,
        gives=dict[str, str],
        takes=(_REPLICA,),
    ),
    Operation(
        method="DELETE",
        path="/replicas/{replica}/drain",
        summary="Have a drained replica take sessions again",
        work=Rest.admit,
        gives=dict[str, str],
        takes=(_REPLICA,),
    ),
    Operation(
        method="GET",
        path="/events",
        summary="What happened lately, newest first; as an event stream (Accept: text/event-stream), as it happens",
        work=Rest.events,
        gives=list[dict[str, Any]],
        takes=(
            ("limit", "query", "Maximum number of items: 100 by default, at most 10000"),
            ("session", "query", "Of this session only, among the newest 2000: how its id begins, 8 characters"),
        ),
    ),
)


def description() -> dict[str, Any]:
    """The interface in OpenAPI 3.1."""
    return described(API, _OPERATIONS)
