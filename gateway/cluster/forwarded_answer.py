"""Relay the answers of session owners to clients: directly on the connection of a POST, or through ASGI."""

from collections.abc import Callable

import msgspec

from gateway.cluster.forwarded_request_envelope import JSON_TYPE, is_event_stream
from gateway.cluster.ownership import Route
from transports.inbound.event_stream import continued
from transports.inbound.http_requests_and_responses import Receive, Send
from transports.inbound_port import HeaderList, OwnedByPeer, UnrecordedAnswer
from transports.peer_channel import PeerCall
from transports.reply_queue import Frame, ReplyQueue

_heads = msgspec.msgpack.Decoder(tuple[int, HeaderList])


def message_in(payload: bytes | None) -> tuple[bytes, HeaderList] | None:
    """Return the JSON message in an owner's answer, and the response's headers except content type and length.
    `payload` is the answer as `PeerCall.answer` returns it; None if it has not come in one frame. Return None for any
    answer but one JSON message with status 200."""
    if payload is None:
        return None
    size = 2 + int.from_bytes(payload[:2], "big")
    try:
        status, headers = _heads.decode(payload[2:size])
    except msgspec.MsgspecError:
        return None
    if status != 200 or len(headers) < 2 or headers[0] != JSON_TYPE or headers[1][0] != b"content-length":
        return None
    return payload[size:], headers[2:]


class ForwardedAnswer(UnrecordedAnswer):
    """Wait for the answer to a call that was sent to the session's owner. If the owner answers with one small JSON
    message and status 200, `replies` gets one frame, and `answered` is called with the route. Otherwise `replies` is
    closed without a frame, and whoever reads `replies` raises `elsewhere()`."""

    __slots__ = ("_answered", "_route", "call", "headers", "replies")

    is_doubtful = False

    def __init__(self, call: PeerCall, route: Route, answered: Callable[[Route], None]) -> None:
        self.call = call
        self.headers: HeaderList = []
        self.replies = ReplyQueue()
        self._route = route
        self._answered = answered
        call.when_answered(self._receive)

    def _receive(self) -> None:
        """Put the owner's answer into `replies` if it is one small message; else close `replies`."""
        found = message_in(self.call.answer)
        if found is None:
            self.replies.close()
            return
        message, self.headers = found
        self.call.done()
        self._answered(self._route)
        self.replies.push(Frame(message, final=True))

    def elsewhere(self) -> OwnedByPeer:
        """Return the exception to raise so that the `Forwarder` continues this call, which was already sent."""
        return OwnedByPeer(msgspec.structs.replace(self._route, begun=self))

    def cancel(self, reason: str) -> None:
        self.call.close()

    def done(self) -> None:
        """Do nothing: the call has ended, or the `Forwarder` continues it."""


class RelayedReply:
    """Relay the frames of a peer's answer to the client, and record how far the answer got.

    `receive` and `send` are the client's ASGI channels.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.receive = receive
        self.send = send
        self.has_started = False
        """Set once the peer may have sent the request to a server."""
        self.has_begun = False
        """Set once the response's head was sent to the client."""
        self.is_stream = False
        self.status = 0
        """The HTTP status of the answer, once its head was sent to the client; 0 before."""
        self.is_plain = False
        """Set if the answer is JSON with status 200."""

    def start(self) -> None:
        """Record that the peer may have sent the request to a server, so that it may have taken effect."""
        self.has_started = True

    async def pass_on(self, kind: bytes, payload: bytes) -> bool:
        """Send the response's head (`kind` is `h`) or a piece of its body to the client. Return False if the head is
        invalid."""
        if kind == b"h":
            try:
                status, headers = _heads.decode(payload)
            except msgspec.MsgspecError:
                return False
            if not 200 <= status < 600:
                return False
            self.has_begun, self.status = True, status
            self.is_stream = is_event_stream(headers)
            self.is_plain = status == 200 and JSON_TYPE in headers
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
        else:
            await self.send({"type": "http.response.body", "body": payload, "more_body": True})
        return True

    def go_on(self, method: str) -> bool:
        """Prepare for the answer of another try to continue the event stream that the client is reading, and return
        True. Return False if that is not possible: what the client is reading is no event stream, or `method` is GET
        (then the client itself resumes the stream)."""
        if method != "POST" or not self.is_stream:
            return False
        self.send, self.has_begun = continued(self.send), False
        return True

    async def end(self, payload: bytes = b"") -> None:
        """Send the client `payload`, the last piece of the answer's body, and end the answer."""
        await self.send({"type": "http.response.body", "body": payload, "more_body": False})
