"""The upper limit: an ASGI app that reads the body and answers the same every time."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"ok"}]}}'

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def respond(send: Send, body: bytes, *more: tuple[bytes, bytes]) -> None:
    """A JSON answer."""
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def read(receive: Receive) -> bytes:
    """The request's body."""
    body = b""
    while True:
        event = await receive()
        body += bytes(event.get("body", b""))
        if not event.get("more_body"):
            return body


async def app(scope: Any, receive: Receive, send: Send) -> None:
    await read(receive)
    await respond(send, ANSWER, (b"mcp-session-id", b"any"))
