"""What of a server's answer can be read by those who ask for the outcome of a task. Pure."""

from typing import Final

import msgspec

from gateway.tasks.messages import MAX_MESSAGE_CHARS
from transports.jsonrpc import INTERNAL_ERROR

__all__ = ["can_be_read", "error_text"]

_DEEPER: Final = 200
"""Levels of arrays around an outcome when it is tried. How deep JSON may be nested for its reader depends on the stack
of the reader, which is another one for each request."""

_json: Final = msgspec.json.Decoder(msgspec.Raw)


class _Error(msgspec.Struct):
    """What a client reads of an error."""

    code: int = INTERNAL_ERROR
    message: str = ""


def can_be_read(outcome: bytes) -> bool:
    """Whether an outcome, which is JSON, is nested so little that any later reader can decode it."""
    try:
        _json.decode(b"[" * _DEEPER + outcome + b"]" * _DEEPER)
    except RecursionError:
        return False
    return True


def error_text(error: msgspec.Raw) -> str | None:
    """The message of an error. None: a client could not read the error. What its `data` says is not looked at."""
    try:
        return msgspec.json.decode(error, type=_Error).message[:MAX_MESSAGE_CHARS]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
