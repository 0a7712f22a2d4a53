"""What of a server's answer can be read by those who ask for the outcome of a task. Pure."""

from itertools import accumulate
from typing import Final

import msgspec

from gateway.tasks.messages import MAX_MESSAGE_CHARS
from transports.jsonrpc import INTERNAL_ERROR

__all__ = ["MAX_LEVELS", "can_be_read", "error_text"]

MAX_LEVELS: Final = 500
"""Arrays and objects inside each other in an outcome that is kept. How deep a reader could go depends on its Python
(3.11 shares 1,000 levels with the stack, 3.13 has 10,000, 3.14 what the memory of the stack holds), and replicas of one
store may run different ones. This is what each of them reads from any depth of the stack."""

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_COLLAPSED: Final = 4
"""How many innermost levels are removed before the others are counted: of the rows of a table nothing is left."""


class _Error(msgspec.Struct):
    """What a client reads of an error."""

    code: int = INTERNAL_ERROR
    message: str = ""


def can_be_read(outcome: bytes) -> bool:
    """Whether an outcome, which is JSON, is nested so little that any later reader can decode it."""
    if outcome.count(b"[") + outcome.count(b"{") <= MAX_LEVELS:
        return True
    without_escapes = outcome.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = b"".join(without_escapes.split(b'"')[::2]).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(_COLLAPSED):
        brackets = brackets.replace(b"[]", b"")
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) <= MAX_LEVELS - _COLLAPSED


def error_text(error: msgspec.Raw) -> str | None:
    """The message of an error. None: a client could not read the error. What its `data` says is not looked at."""
    try:
        return msgspec.json.decode(error, type=_Error).message[:MAX_MESSAGE_CHARS]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
