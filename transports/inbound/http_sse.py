"""HTTP+SSE, the transport before Streamable HTTP, for clients that know no other: one session for each event stream.

MCP 2024-11-05, Transports §HTTP with SSE. Messages are posted to an address of the stream's own; which process has the
stream does not matter.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol
from urllib.parse import parse_qs

import msgspec

from transports.base import Refused
from transports.inbound.connected import Connected
from transports.inbound.http import Guard, Receive, Scope, Send, read_body, send_refusal, send_status
from transports.inbound.inside import Inside
from transports.jsonrpc import INVALID_REQUEST
from transports.sse import COMMENT, encode_event

__all__ = ["HttpSse", "Mail"]

KEEPALIVE_S: Final = 15.0
MAX_UNREAD: Final = 1_024
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_PASSED_ON: Final = ("authorization", "traceparent", "user-agent")


class Mail(Protocol):
    """Short messages between processes, to who listens now."""

    async def publish(self, topic: str, data: bytes) -> None: ...

    def listening(self, topic: str, hear: Callable[[bytes | None], None]) -> AbstractAsyncContextManager[None]: ...


class _Posted(msgspec.Struct):
    """A message on its way to its stream."""

    headers: dict[str, str]
    body: bytes


class HttpSse:
    """One endpoint as an ASGI app: GET opens the stream, POST to `…/messages` says something on it."""

    def __init__(self, app: object, endpoint: str, mail: Mail, *, guard: Guard, body_limit: int) -> None:
        self._inside = Inside(app, endpoint)
        self._mail = mail
        self._guard = guard
        self._body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._guard.headers(scope)
        try:
            self._guard.check(headers)
            if scope["method"] == "GET" and not scope["path"].endswith("/messages"):
                if not self._guard.same_site(headers):
                    raise Refused(403, INVALID_REQUEST, "Event streams are not served to other sites.")
                await self._stream(scope, receive, send)
            elif scope["method"] == "POST" and scope["path"].endswith("/messages"):
                await self._post(scope, headers, receive, send)
            else:
                await send_status(send, 405, [(b"allow", b"GET" if "/messages" not in scope["path"] else b"POST")])
        except Refused as refused:
            await send_refusal(send, refused)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = secrets.token_urlsafe(18)
        unsent: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNREAD)
        heard: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNREAD)

        def hear(data: bytes | None) -> None:
            if data is not None and not heard.full():
                heard.put_nowait(data)

        async def write(line: bytes) -> None:
            await unsent.put(encode_event(line))

        connected = Connected(self._inside, write)
        async with self._mail.listening(_topic(name), hear):
            head = [
                (b"content-type", b"text/event-stream"),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            path = f"{scope.get('root_path', '')}{scope['path'].removeprefix(scope.get('root_path', ''))}"
            address = f"event: endpoint\ndata: {path}/messages?connection={name}\n\n".encode()
            await send({"type": "http.response.body", "body": address, "more_body": True})
            tasks = [
                asyncio.ensure_future(work)
                for work in (_left(receive), _pump(unsent, send), self._work(heard, connected))
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await connected.close(answering=False)

    async def _work(self, heard: asyncio.Queue[bytes], connected: Connected) -> None:
        while True:
            posted = msgspec.msgpack.decode(await heard.get(), type=_Posted)
            await connected.heard(posted.body, posted.headers)

    async def _post(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        names = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("connection", [])
        if len(names) != 1 or not 16 <= len(names[0]) <= 64:
            raise Refused(400, INVALID_REQUEST, "Post to the address that the event stream began with.")
        body = await read_body(receive, headers, self._body_limit)
        if body is None:
            return
        passed = {name: headers[name] for name in _PASSED_ON if name in headers}
        await self._mail.publish(_topic(names[0]), msgspec.msgpack.encode(_Posted(headers=passed, body=body)))
        await send_status(send, 202)


def _topic(name: str) -> str:
    return f"mcp:sse:{name}"


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pump(unsent: asyncio.Queue[bytes], send: Callable[..., Awaitable[None]]) -> None:
    while True:
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                data = await unsent.get()
        except TimeoutError:
            data = COMMENT
        await send({"type": "http.response.body", "body": data, "more_body": True})
