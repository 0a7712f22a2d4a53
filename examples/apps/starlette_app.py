"""Sessions in a Starlette app. Store and keys come from the environment: see README.md."""

import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway import SessionMiddleware
from session_store import current_session


async def visit(request: Request) -> JSONResponse:
    visits = await current_session().state.increment("visits")
    return JSONResponse({"visits": visits, "worker": os.getpid()})


async def conversation(websocket: WebSocket) -> None:
    await websocket.accept()
    async for _ in websocket.iter_text():
        visits = await current_session().state.increment("visits")
        await websocket.send_json({"visits": visits, "worker": os.getpid()})


app = Starlette(
    routes=[Route("/visit", visit), WebSocketRoute("/ws", conversation)],
    middleware=[Middleware(SessionMiddleware)],
)
