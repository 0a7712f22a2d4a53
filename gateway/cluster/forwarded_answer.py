"""The answer to a call that was sent to a session's owner on a channel, for the connection of its client."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.cluster.ownership import Route
from transports.inbound_port import OwnedByPeer
from transports.peer_channel import PeerCall
from transports.reply_queue import Frame, ReplyQueue

__all__ = ["ForwardedAnswer"]

Headers = list[tuple[bytes, bytes]]

_heads = msgspec.msgpack.Decoder(tuple[int, Headers])
_JSON = (b"content-type", b"application/json")


class ForwardedAnswer:
    """Has one frame if the owner answers with one JSON message and status 200; else none, and `elsewhere` goes on.

    `answered` is called when the frame is there.
    """

    __slots__ = ("_answered", "_route", "call", "headers", "replies")

    is_doubtful = False

    def __init__(self, call: PeerCall, route: Route, answered: Callable[[Route], None]) -> None:
        self.call = call
        self.headers: Headers = []
        self.replies = ReplyQueue()
        self._route = route
        self._answered = answered
        call.when_answered(self._receive)

    def _receive(self) -> None:
        """The owner's answer is there, or something else has become of the call."""
        payload = self.call.answer
        if payload is None:
            self.replies.close()
            return
        size = 2 + int.from_bytes(payload[:2], "big")
        try:
            status, headers = _heads.decode(payload[2:size])
        except msgspec.MsgspecError:
            status, headers = 0, []
        if status != 200 or len(headers) < 2 or headers[0] != _JSON or headers[1][0] != b"content-length":
            self.replies.close()
            return
        self.headers = headers[2:]
        self.call.done()
        self._answered(self._route)
        self.replies.push(Frame(payload[size:], final=True))

    def elsewhere(self) -> OwnedByPeer:
        """For the `Forwarder`, which goes on with this call."""
        return OwnedByPeer(msgspec.structs.replace(self._route, begun=self))

    def cancel(self, reason: str) -> None:
        self.call.close()

    async def confirmed(self, frame: Frame) -> Frame:
        return frame

    def record(self, frames: Sequence[Frame]) -> Sequence[None]:
        return (None,) * len(frames)

    def done(self) -> None:
        """Do nothing: the call has ended, or `elsewhere` has it."""
