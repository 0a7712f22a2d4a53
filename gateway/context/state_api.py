"""Serve the state of one session over HTTP, to code outside the gateway's process.

The connection (a child process's socket) or the assertion in the request (an HTTP server) decides which session it is.
A request cannot name a session.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.context.session_facts import workspace_source
from session_store import InvalidState, SessionGone, StateStore, StoreUnavailable
from session_store.ports.tool_state import MAX_VALUE_BYTES
from session_store.tool_session import ToolSession, to_json
from transports.inbound.unix_app_server import OF_SOCKET, PEER_PID
from transports.upstream.process_tree import is_below, parent

_START_S: Final = 10.0
"""Seconds that a connection of a server's process waits until the start of the server is reported (`started`)."""

_MOST_LEVELS: Final = 256
"""The most levels that a process may be below the server's reaper. Deeper processes are refused, because a longer
search would block the event loop."""


class ProcessTree:
    """Decide which processes belong to a server that is about to start. All of them are descendants of the server's
    reaper, which adopts those whose parent has ended."""

    def __init__(self) -> None:
        self._top: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def started(self, pid: int | None) -> None:
        """Record the pid of the server's process. Pass None if processes that do not descend from it may do the
        server's work, as with the client of a container engine."""
        if not self._top.done():
            self._top.set_result(None if pid is None else parent(pid) or 0)

    async def has(self, pid: int) -> bool:
        """Return True if a process descends from the server's reaper, or is the reaper, which connects for a sandboxed
        server. Wait a limited time for `started`; return False if it is not called. After `started(None)`, return True
        for every process: the processes of such a server need not descend from a reaper."""
        try:
            top = await asyncio.wait_for(asyncio.shield(self._top), _START_S)
        except TimeoutError:
            return False
        return top is None or (top > 1 and (pid == top or is_below(pid, top, most_levels=_MOST_LEVELS)))


_MOST_BODY: Final = 2 * MAX_VALUE_BYTES + 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAccess:
    """The session that one connection may access. `secret`: the bearer token that requests on the socket of a child
    process must have; only that child process gets the token. `processes`: the processes that may use the connection;
    None if all may."""

    session: ToolSession
    store: StateStore
    secret: str
    processes: ProcessTree | None = None


Allowing = Callable[[Request], Awaitable[StateAccess]]
"""Type of a function that returns the session that a request may access. Raises `HTTPException`."""


async def by_connection(request: Request) -> StateAccess:
    """Return the access to the session that the socket of this connection belongs to. Raises `HTTPException`: 401 if
    the request lacks the socket's secret, 403 if it comes from a process that does not belong to the socket's
    server."""
    access: StateAccess = request.scope["state"][OF_SOCKET]()
    given = request.headers.get("authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {access.secret}".encode()):
        raise HTTPException(401, "send Authorization: Bearer with the access token from this process's environment")
    pid: int | None = request.scope["state"].get(PEER_PID)
    if access.processes is not None and pid is not None and not await access.processes.has(pid):
        raise HTTPException(403, "this socket serves the processes of one server, and this process is not one of them")
    return access


def state_api(allowing: Allowing) -> Starlette:
    """Return the ASGI application that serves the state of sessions. `allowing` returns the session that a request may
    access. Values are JSON, errors are `{"error": "…"}` with an HTTP status."""
    key = "/v1/state/{key:path}"
    return Starlette(
        routes=[
            Route("/v1/session", _guarded(allowing, _session), methods=["GET"]),
            Route("/v1/state", _guarded(allowing, _keys), methods=["GET"]),
            Route(f"{key}/increment", _guarded(allowing, _increment), methods=["POST"]),
            Route(f"{key}/compare-and-set", _guarded(allowing, _compare_and_set), methods=["POST"]),
            Route(key, _guarded(allowing, _get), methods=["GET"]),
            Route(key, _guarded(allowing, _set), methods=["PUT"]),
            Route(key, _guarded(allowing, _delete), methods=["DELETE"]),
        ],
        exception_handlers={HTTPException: _refused},
    )


RouteHandler = Callable[[Request, StateAccess], Awaitable[Response]]


def _guarded(allowing: Allowing, endpoint: RouteHandler) -> Callable[[Request], Awaitable[Response]]:
    async def checked(request: Request) -> Response:
        writes = False
        try:
            access = await allowing(request)
            writes = request.method not in ("GET", "HEAD")
            return await endpoint(request, access)
        except SessionGone:
            raise HTTPException(410, "the session has ended") from None
        except InvalidState as error:
            raise HTTPException(400, str(error)) from None
        except StoreUnavailable as error:
            if writes and error.may_have_taken_effect:
                why = "the session store did not answer; whether the change took effect is unknown"
                raise HTTPException(504, why) from None
            raise HTTPException(503, "the session store does not answer", {"Retry-After": "1"}) from None

    return checked


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


async def _body(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MOST_BODY:
            raise HTTPException(413, f"the body is larger than {_MOST_BODY} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


def _object(text: bytes, *names: str) -> dict[str, Any]:
    value = _json(text or b"{}")
    if not isinstance(value, dict) or value.keys() - set(names):
        raise HTTPException(400, f"the body must be an object of {', '.join(names)}")
    return value


async def _session(_: Request, access: StateAccess) -> Response:
    session = access.session
    return JSONResponse(
        {
            "session_id": session.id,
            "principal": session.principal,
            "agent": session.agent,
            "workspace": session.context.workspace,
            "workspace_provenance": workspace_source(session.context),
            "trust": session.context.trust,
            "permissions": list(session.context.permissions),
            "created_at": session.created_at,
            "last_active_at": await session.last_active_at(),
            "idle_ttl_s": session.idle_ttl_s,
            "max_age_s": session.max_age_s,
            "token_hash": session.token_hash,
            "metadata": dict(await session.metadata()),
        }
    )


async def _keys(_: Request, access: StateAccess) -> Response:
    return JSONResponse({"keys": await access.session.state.keys()})


async def _get(request: Request, access: StateAccess) -> Response:
    value = await access.store.get(access.session.id, request.path_params["key"])
    if value is None:
        raise HTTPException(404, "no such key")
    return Response(value, media_type="application/json")


async def _set(request: Request, access: StateAccess) -> Response:
    key = request.path_params["key"]
    await access.store.set(access.session.id, key, to_json(key, _json(await _body(request))))
    return Response(status_code=204)


async def _delete(request: Request, access: StateAccess) -> Response:
    if not await access.session.state.delete(request.path_params["key"]):
        raise HTTPException(404, "no such key")
    return Response(status_code=204)


async def _increment(request: Request, access: StateAccess) -> Response:
    by = _object(await _body(request), "by").get("by", 1)
    if not isinstance(by, int) or isinstance(by, bool):
        raise HTTPException(400, "by must be an integer")
    return JSONResponse({"value": await access.session.state.increment(request.path_params["key"], by)})


async def _compare_and_set(request: Request, access: StateAccess) -> Response:
    """Set a key to `value` if it has the value `expected`; both are in the body. Without `expected`, the key must not
    exist; without `value`, the key is deleted. The answer says in `swapped` whether the key was changed."""
    key = request.path_params["key"]
    change = _object(await _body(request), "expected", "value")
    expected, value = (to_json(key, change[n]) if n in change else None for n in ("expected", "value"))
    return JSONResponse({"swapped": await access.store.compare_and_set(access.session.id, key, expected, value)})
