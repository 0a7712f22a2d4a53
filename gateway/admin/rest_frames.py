"""The part of the REST interface that shows the messages and the stderr of a session as they pass."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from gateway.admin.frames import SessionWatches
from gateway.admin.openapi import Operation
from gateway.admin.reports import FramesPage, StderrPage
from gateway.admin.rest_parameters import SESSION, Problem, number

__all__ = ["FRAMES", "FrameRest"]

_EVERY_S: Final = 0.5
_MOST: Final = 500
_FRESH: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Read = Callable[..., Awaitable[Any]]


class FrameRest:
    """The methods of these operations. `frames` switches and reads; `is_draining`: streams end now."""

    def __init__(self, frames: Callable[[], SessionWatches], is_draining: Callable[[], bool]) -> None:
        self._watches = frames
        self._drains = is_draining

    async def switch_frames_on(self, request: Request, operator: str) -> FramesPage:
        return await self._watches().switch_on(request.path_params["session"], operator)

    async def switch_frames_off(self, request: Request, operator: str) -> FramesPage:
        return await self._watches().switch_off(request.path_params["session"], operator)

    async def frames(self, request: Request, operator: str) -> Any:
        return await self._read(request, operator, self._watches().frames, "frames")

    async def stderr(self, request: Request, operator: str) -> Any:
        return await self._read(request, operator, self._watches().stderr, "lines")

    async def _read(self, request: Request, operator: str, read: Read, items: str) -> Any:
        session, after = request.path_params["session"], _after(request)
        page = await read(session, operator, after=after, limit=number(request, "limit", 100, _MOST))
        if "text/event-stream" not in request.headers.get("accept", ""):
            return page
        if not page.watched:
            raise Problem(409, "nobody watches this session: switch its frames on first (PUT …/frames)")
        stream = self._stream(page, lambda last: read(session, operator, after=last, limit=_MOST), items)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_FRESH)

    async def _stream(self, page: Any, read: Callable[[int], Awaitable[Any]], items: str) -> AsyncIterator[bytes]:
        """What was seen and what is seen from now on, each as an event, until the watch ends."""
        yield b": until the watch ends\n\n"
        while page.watched:
            if page.missed:
                yield b": %d are not kept any more\n\n" % page.missed
            for item in getattr(page, items):
                yield b"id: %d\ndata: %s\n\n" % (item.number, msgspec.json.encode(item))
            if self._drains():
                return
            await asyncio.sleep(_EVERY_S)
            page = await read(page.after)


def _after(request: Request) -> int:
    """The number that the client has read last: a parameter, or the header of a stream that is read on."""
    text = request.query_params.get("after", "") or request.headers.get("last-event-id", "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 18):
        raise Problem(400, "after: must be a number, `after` of the page before")
    return int(text or 0)


_AFTER: Final = (
    "after",
    "query",
    "The oldest ones behind this number: `after` of the page before. Left out: the newest",
)
_LIMIT: Final = ("limit", "query", f"Maximum number of items: 100 by default, at most {_MOST}")
FRAMES: Final = (
    Operation(
        method="GET",
        path="/sessions/{session}/frames",
        summary="Messages of a session whose frames are switched on, redacted; as an event stream, as they pass",
        work=FrameRest.frames,
        gives=FramesPage,
        takes=(SESSION, _AFTER, _LIMIT),
    ),
    Operation(
        method="PUT",
        path="/sessions/{session}/frames",
        summary="Switch the frames of a session on for 10 minutes, or for 10 minutes more",
        work=FrameRest.switch_frames_on,
        gives=FramesPage,
        takes=(SESSION,),
    ),
    Operation(
        method="DELETE",
        path="/sessions/{session}/frames",
        summary="Switch the frames of a session off, and forget them",
        work=FrameRest.switch_frames_off,
        gives=FramesPage,
        takes=(SESSION,),
    ),
    Operation(
        method="GET",
        path="/sessions/{session}/stderr",
        summary="What the servers of a session write to stderr, redacted; live while its frames are switched on",
        work=FrameRest.stderr,
        gives=StderrPage,
        takes=(SESSION, _AFTER, _LIMIT),
    ),
)
