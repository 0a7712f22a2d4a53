"""Sessions in a FastAPI app. Store and keys come from the environment: see README.md."""

import os
from typing import Annotated

from fastapi import Depends, FastAPI, WebSocket

from gateway import AppSession, SessionMiddleware
from session_store import current_session

app = FastAPI()
app.add_middleware(SessionMiddleware)
Session = Annotated[AppSession, Depends(current_session)]


@app.get("/visit")
async def visit(session: Session) -> dict[str, int]:
    return {"visits": await session.state.increment("visits"), "worker": os.getpid()}


@app.websocket("/ws")
async def conversation(websocket: WebSocket, session: Session) -> None:
    await websocket.accept()
    async for _ in websocket.iter_text():
        await websocket.send_json({"visits": await session.state.increment("visits"), "worker": os.getpid()})
