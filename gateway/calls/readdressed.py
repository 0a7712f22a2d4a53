"""Frames of a suspended call, for the request with which its client has come back. Pure."""

from collections.abc import Callable

import msgspec

from transports.jsonrpc import (
    Message,
    RequestId,
    encode,
    encode_error,
    encode_notification,
    encode_result,
    parse,
    splice,
)
from transports.reply_queue import Frame

__all__ = ["readdressed"]


def readdressed(client_id: RequestId, progress_token: msgspec.Raw | None) -> Callable[[Frame], Frame | None]:
    """A function for the frames that were queued while nobody waited for them.

    They name the id and the progress token of the client's earlier request, which it has closed. The function returns
    a frame under those of the later request; None for progress that the later request does not want.
    """

    def change(frame: Frame) -> Frame | None:
        message = parse(frame.data)
        if message.is_response:
            return msgspec.structs.replace(frame, data=_answer(encode(client_id), message))
        if message.method != "notifications/progress":
            return frame
        if progress_token is None:
            return None
        params = message.params_object() | {"progressToken": progress_token}
        return msgspec.structs.replace(frame, data=encode_notification(message.method, splice(encode(params))))

    return change


def _answer(client_id: bytes, message: Message) -> bytes:
    if isinstance(message.error, msgspec.Raw):
        return encode_error(client_id, splice(message.error))
    assert isinstance(message.result, msgspec.Raw)
    return encode_result(client_id, splice(message.result))
