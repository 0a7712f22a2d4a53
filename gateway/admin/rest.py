"""Serve the operators' verbs as a REST interface under `/admin/api`."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.admin.auth import CHALLENGE, Access, HostNotAllowed, TooManyAttempts
from gateway.admin.operator_tool_calls import left, sent_in
from gateway.admin.query_types import OperatorError, TooLate
from gateway.admin.report_types import Attempt, FramesPage, StderrPage
from gateway.admin.verb_handlers import Operations
from gateway.admin.verbs import VERBS, Verb, openapi
from gateway.calls.messages_for_operators import MOST_FRAMES
from session_store import StoreUnavailable
from transports.inbound.http_requests_and_responses import peer_of

API: Final = "/admin/api"

_CHECKED_EVERY_S: Final = 1.0
"""Seconds between two checks that the operator of a stream is still signed in."""
_FRAMES_EVERY_S: Final = 0.5

_FRESH: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Rest:
    """Make the routes of the REST interface."""

    def __init__(self, operations: Operations, access: Access) -> None:
        self.operations = operations
        self.access = access

    @property
    def routes(self) -> list[Route]:
        paths: dict[str, dict[str, Verb]] = {}
        for verb in VERBS:
            paths.setdefault(verb.path, {})[verb.method] = verb
        return [
            Route(f"{API}/openapi.json", self._describe),
            *(Route(API + path, self._endpoint(ways), methods=list(ways)) for path, ways in paths.items()),
        ]

    async def _describe(self, request: Request) -> Response:
        return JSONResponse(openapi(API))

    def _endpoint(self, ways: dict[str, Verb]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                self.access.check_host(request)
                operator = await self.access.operator(request)
                if operator is None:
                    return _problem(401, "send Authorization: Bearer with a key of gateway.admin.keys", CHALLENGE)
                verb = ways["GET" if request.method == "HEAD" else request.method]
                answer = await self._answer(verb, request, operator)
            except HostNotAllowed as error:
                return _problem(421, str(error))
            except OperatorError as error:
                return _problem(error.status, str(error))
            except TooManyAttempts as error:
                return _problem(429, str(error), {"Retry-After": f"{error.wait_s:.0f}"})
            except StoreUnavailable:
                return _problem(503, "the session store does not answer; try again", {"Retry-After": "1"})
            if isinstance(answer, AsyncIterator):
                parts = self._while_signed_in(request, answer)
                return StreamingResponse(parts, media_type="text/event-stream", headers=_FRESH)
            return Response(msgspec.json.encode(answer), media_type="application/json", headers=_FRESH)

        return endpoint

    async def _while_signed_in(self, request: Request, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Pass on the parts of an event stream to an operator. End the stream when the operator signs out or the
        operator's key is no longer configured (checked from time to time), or when an error ends it."""
        checked = monotonic()
        with contextlib.suppress(OperatorError, StoreUnavailable, TooManyAttempts):
            async for part in parts:
                if monotonic() - checked >= _CHECKED_EVERY_S:
                    if await self.access.operator(request) is None:
                        return
                    checked = monotonic()
                yield part

    async def _answer(self, verb: Verb, request: Request, operator: str) -> Any:
        """Execute a verb for the operator `operator`, with the arguments in the request. Return the answer, to be
        encoded as JSON. If the request accepts an event stream and the verb has one, return an iterator of the events
        instead."""
        query = request.query_params
        if verb.is_exact:
            known = [one.name for taken in verb.takes for one in taken.flat]
            if unknown := sorted(query.keys() - set(known)):
                raise OperatorError(f"{unknown[0]}: is not a parameter; the parameters are {', '.join(known)}")
            if len(query) < len(query.multi_items()):
                raise OperatorError("give each parameter once")
        if verb.sends is not None:
            return await self._done(verb, request, operator)
        given = {**query, **request.path_params}
        if verb.gives in (FramesPage, StderrPage) and not given.get("after"):  # a stream that is read on
            given["after"] = request.headers.get("last-event-id", "")
        arguments = {one.at: one.read(given) for one in verb.takes} | ({"by": operator} if verb.by else {})
        is_stream = "text/event-stream" in request.headers.get("accept", "")
        if is_stream and verb.name == "events":
            return self._events(arguments["session"])
        work = getattr(self.operations, verb.name)
        answer = await work(**arguments)
        if is_stream and verb.method == "GET" and isinstance(answer, FramesPage | StderrPage):
            if not answer.watched:
                raise TooLate("the frames of this session are off: switch them on first (PUT …/frames)")
            return self._frames(answer, lambda after: work(**arguments | {"after": after, "limit": MOST_FRAMES}))
        return {verb.answers: answer} if verb.answers else answer

    async def _done(self, verb: Verb, request: Request, operator: str) -> Any:
        sent = await sent_in(request, verb.sends)
        if isinstance(sent, Attempt):
            return await self.operations.call(sent, operator, peer=peer_of(request.scope), left=left(request))
        answer = await getattr(self.operations, verb.name)(sent, operator)
        return {verb.answers: answer} if verb.answers else answer

    async def _events(self, session: str) -> AsyncIterator[bytes]:
        yield b": what happens from now on\n\n"
        async for event in self.operations.follow(session):
            yield b"data: " + msgspec.json.encode(event) + b"\n\n"

    async def _frames(
        self, page: FramesPage | StderrPage, read: Callable[[int], Awaitable[FramesPage | StderrPage]]
    ) -> AsyncIterator[bytes]:
        """Yield recorded messages or stderr lines as events: those of `page`, then the new ones that `read` returns, as
        they are recorded. `read` gets the number of the last one sent. End when the watch ends or the replica
        drains."""
        yield b": until the watch ends\n\n"
        while page.watched:
            if page.missed:
                yield b": %d are not kept any more\n\n" % page.missed
            for item in page.frames if isinstance(page, FramesPage) else page.lines:
                yield b"id: %d\ndata: %s\n\n" % (item.number, msgspec.json.encode(item))
            if self.operations.is_draining:
                return
            await asyncio.sleep(_FRAMES_EVERY_S)
            page = await read(page.after)


def _problem(status: int, detail: str, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Return the HTTP response to a failed request: problem details (RFC 9457) with `status` and `detail`."""
    body = {"status": status, "detail": detail}
    return JSONResponse(body, status, headers={**_FRESH, **headers}, media_type="application/problem+json")
