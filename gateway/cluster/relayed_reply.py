"""The client's side of a forwarded request: passes a peer's answer on, and records what the client was sent."""

import msgspec

from transports.inbound.http import Receive, Send

__all__ = ["RelayedReply"]

_HEAD = tuple[int, list[tuple[bytes, bytes]]]


class RelayedReply:
    """Passes the frames of an answer to the client, and records how far the answer has come.

    `receive` and `send` are the client's ASGI channels.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.receive = receive
        self.send = send
        self.has_started = False
        """The peer may have written something of the request upstream."""
        self.has_begun = False
        """The client has been sent the head of the answer."""
        self.is_stream = False
        self.is_plain = False
        """The answer is one JSON message with status 200."""

    def start(self) -> None:
        """Record that the request may have taken effect from now on."""
        self.has_started = True

    async def pass_on(self, kind: bytes, payload: bytes) -> None:
        """Pass a frame on: `h` the head, `b` a piece of the body."""
        if kind == b"h":
            status, headers = msgspec.msgpack.decode(payload, type=_HEAD)
            self.has_begun = True
            self.is_stream = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)
            self.is_plain = status == 200 and (b"content-type", b"application/json") in headers
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
        elif kind == b"b":
            await self.send({"type": "http.response.body", "body": payload, "more_body": True})

    async def end(self, payload: bytes = b"") -> None:
        """Send the last part of the answer, and end it."""
        await self.send({"type": "http.response.body", "body": payload, "more_body": False})
