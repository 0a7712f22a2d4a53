"""One call in flight: its ids on both sides, its frames, its end."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.context import RESTARTED_KEY, with_meta
from transports.base import Frame, ReplyQueue
from transports.jsonrpc import Message, Object, RequestId, encode, encode_error, encode_result, error_code, splice

if TYPE_CHECKING:
    from gateway.conversation import Conversation
    from gateway.live import LiveSession

__all__ = ["Exchange"]


class Exchange:
    """A client's request on its way through one conversation.

    `number` is its id on the upstream's side, where ids of many clients must not collide; it serves as progress token
    and subscription id there too. `shape` turns the upstream's result into what the client gets; None keeps it.
    """

    __slots__ = (
        "client_id",
        "conversation",
        "heard_at",
        "live",
        "method",
        "number",
        "progress_token",
        "replies",
        "shape",
    )

    def __init__(
        self,
        *,
        method: str,
        client_id: RequestId,
        live: "LiveSession | None",
        replies: ReplyQueue,
        shape: Callable[["Exchange", Object], Object] | None = None,
    ) -> None:
        self.method = method
        self.client_id = client_id
        self.live = live
        self.replies = replies
        self.shape = shape
        self.number = 0
        self.progress_token: msgspec.Raw | None = None
        self.conversation: Conversation | None = None
        self.heard_at = 0.0

    @property
    def is_subscription(self) -> bool:
        """A stream that stays open (MCP 2026-07-28 `subscriptions/listen`): nothing else is said on it."""
        return self.method == "subscriptions/listen"

    def heard(self) -> None:
        """A sign of life: the time a call may take counts from the last one."""
        self.heard_at = asyncio.get_running_loop().time()

    def emit(self, frame: bytes) -> bool:
        """Send the client something that belongs to this call; False when it does not read."""
        return self.replies.push(Frame(frame))

    def finish(self, message: Message, restarted: str | None = None) -> None:
        """Answer with the upstream's response; `restarted` says why the server had to be started anew before it."""
        client_id = encode(self.client_id)
        if isinstance(message.error, msgspec.Raw):
            data = encode_error(client_id, splice(message.error))
            self.replies.push(Frame(data, final=True, error_code=error_code(message.error)))
        elif isinstance(message.result, msgspec.Raw):
            result = splice(message.result)
            if self.shape is not None or restarted is not None:
                result = encode(self._shaped(msgspec.json.decode(result, type=Object), restarted))
            self.replies.push(Frame(encode_result(client_id, result), final=True))

    def _shaped(self, result: Object, restarted: str | None) -> Object:
        if self.shape is not None:
            result = self.shape(self, result)
        if restarted is not None:
            result = with_meta(result, {RESTARTED_KEY: msgspec.Raw(encode({"reason": restarted}))})
        return result

    def fail(self, code: int, reason: str) -> None:
        """Answer with an error of ours."""
        data = encode_error(encode(self.client_id), {"code": code, "message": reason})
        self.replies.push(Frame(data, final=True, error_code=code))
