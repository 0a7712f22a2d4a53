"""What clients and operators read as the message of a task. Pure."""

from typing import Final

import msgspec

from transports.jsonrpc import Object

__all__ = ["AGAIN", "MAX_MESSAGE_CHARS", "message_of", "progress_text", "reason_of"]

MAX_MESSAGE_CHARS: Final = 1_024
"""Characters of a task's message."""

AGAIN: Final = "started again, because the gateway that ran it ended without an answer"
"""How each message of a task begins that runs again, and that of its outcome."""


def message_of(runs: int, text: str = "") -> str:
    """The message of a task that was started `runs` times. `text` says how far it is, or what it has come to."""
    parts = (AGAIN if runs > 1 else "", text)
    return ": ".join(part for part in parts if part)[:MAX_MESSAGE_CHARS]


def progress_text(params: Object) -> str:
    """A progress notification as text. Raises `msgspec.MsgspecError`: it cannot be read."""
    decoded = {key: msgspec.json.decode(params[key]) for key in ("message", "progress", "total") if key in params}
    text, progress, total = decoded.get("message"), decoded.get("progress"), decoded.get("total")
    steps = _number_text(progress)
    if steps and (of := _number_text(total)):
        steps += f" of {of}"
    if isinstance(text, str) and text:
        return f"{text} ({steps})" if steps else text
    return f"progress: {steps}" if steps else ""


class _Text(msgspec.Struct):
    text: str = ""


class _Content(msgspec.Struct):
    content: list[_Text] = msgspec.field(default_factory=list)


def reason_of(result: bytes) -> str:
    """How a tool says that it has failed: the first text of its result, cut. Empty if there is none."""
    try:
        content = msgspec.json.decode(result, type=_Content).content
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return next((item.text for item in content if item.text), "")[:MAX_MESSAGE_CHARS]


def _number_text(number: object) -> str:
    """A number for people; empty if there is none, or one that is too large for any."""
    try:
        return f"{number:g}" if isinstance(number, (int, float)) else ""
    except OverflowError:  # an integer has any number of digits
        return ""
