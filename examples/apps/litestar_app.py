"""Sessions in a Litestar app. Store and keys come from the environment: see README.md."""

import os

from litestar import Litestar, get, websocket_listener

from gateway import SessionMiddleware
from session_store import current_session


@get("/visit")
async def visit() -> dict[str, int]:
    return {"visits": await current_session().state.increment("visits"), "worker": os.getpid()}


@websocket_listener("/ws")
async def conversation(data: str) -> dict[str, int]:
    return {"visits": await current_session().state.increment("visits"), "worker": os.getpid()}


app = SessionMiddleware(Litestar([visit, conversation]))
