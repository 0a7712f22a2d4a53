"""An app that answers JSON, the same with one read of Redis, and the same behind `SessionMiddleware`: its session
untouched, read, and written."""

import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway import SessionMiddleware
from session_store import current_session
from session_store.redis import RedisBackend

__all__ = ["asking", "bare", "read", "untouched", "written"]


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"visits": 1})


async def reading(request: Request) -> JSONResponse:
    return JSONResponse({"visits": await current_session().state.get("visits", 0)})


async def writing(request: Request) -> JSONResponse:
    return JSONResponse({"visits": await current_session().state.increment("visits")})


def with_sessions(handler: object) -> Starlette:
    sessions = Middleware(SessionMiddleware, store=f"redis://{os.environ['BENCH_REDIS']}/0")
    return Starlette(routes=[Route("/mcp", handler, methods=["POST"])], middleware=[sessions])  # type: ignore[arg-type]


redis = RedisBackend(f"redis://{os.environ['BENCH_REDIS']}/0")


async def asking_redis(request: Request) -> JSONResponse:
    """The least that a request with a round trip can cost: the store's own connection, and no session."""
    await redis.commands.run("HGET", "bench", "visits")
    return JSONResponse({"visits": 1})


asking = Starlette(routes=[Route("/mcp", asking_redis, methods=["POST"])])
bare = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
untouched, read, written = map(with_sessions, (answer, reading, writing))
