"""An app that answers JSON, and the same behind `SessionMiddleware`: its session untouched, read, and written."""

import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway import SessionMiddleware
from session_store import current_session

__all__ = ["bare", "read", "untouched", "written"]


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"visits": 1})


async def reading(request: Request) -> JSONResponse:
    return JSONResponse({"visits": await current_session().state.get("visits", 0)})


async def writing(request: Request) -> JSONResponse:
    return JSONResponse({"visits": await current_session().state.increment("visits")})


def with_sessions(handler: object) -> Starlette:
    sessions = Middleware(SessionMiddleware, store=f"redis://{os.environ['BENCH_REDIS']}/0")
    return Starlette(routes=[Route("/mcp", handler, methods=["POST"])], middleware=[sessions])  # type: ignore[arg-type]


bare = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
untouched, read, written = map(with_sessions, (answer, reading, writing))
