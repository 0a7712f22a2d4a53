"""Define the states of a task that the gateway has created, its message, and how deep its outcome may be nested.
Pure."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final

import msgspec

from gateway.calls.lifecycles import step
from session_store import Task, TaskStatus
from transports.jsonrpc import INTERNAL_ERROR, UNREADABLE, Object

MAX_MESSAGE_CHARS: Final = 1_024
"""Maximum characters of a task's message. Longer messages are shortened."""

AGAIN: Final = "started again, because the gateway that ran it ended without an answer"
"""The beginning of each message of a task whose call was sent again, also after it has ended."""

MAX_LEVELS: Final = 500
"""Maximum depth of arrays and objects in a stored outcome. How deep a reader can decode depends on its Python version:
3.11 shares 1,000 levels with the stack, 3.13 has 10,000, 3.14 as many as the stack's memory allows. Replicas of one
store may run different versions. Each of them can decode this depth."""

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

_ALIKE: Final = bytes.maketrans(b"{}", b"[]")

_STEPS: Final = {ord("["): 1, ord("]"): -1}

_COLLAPSED: Final = 4
"""Number of innermost levels that are removed from an outcome before its remaining levels are counted. This shortens
wide data such as a table."""


class TaskEvent(StrEnum):
    ASK = "ask"
    RESUME = "resume"
    """All questions were answered or cancelled."""
    FOLLOW = "follow"
    """The owner is gone, and the next owner follows the task that the server has created for the call."""
    RUN_AGAIN = "run again"
    """The owner is gone, and the next owner sends the call again, because its tool is idempotent."""
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


_E = TaskEvent
_ENDS: Final[Mapping[TaskEvent, TaskStatus]] = {_E.COMPLETE: "completed", _E.FAIL: "failed", _E.CANCEL: "cancelled"}

TASK: Final[Mapping[TaskStatus, Mapping[TaskEvent, TaskStatus]]] = {
    "working": {_E.ASK: "input_required", _E.FOLLOW: "working", _E.RUN_AGAIN: "working", **_ENDS},
    "input_required": {
        _E.ASK: "input_required",
        _E.RESUME: "working",
        _E.FOLLOW: "working",
        _E.RUN_AGAIN: "working",
        **_ENDS,
    },
    # An outcome stays what it is.
    "completed": {},
    "failed": {},
    "cancelled": {},
}


def after(status: TaskStatus, event: TaskEvent) -> TaskStatus:
    """Return the status of a task after `event`. Raises `IllegalStep`: the event cannot happen in this status."""
    return step(TASK, status, event)


def may_run_again(task: Task) -> bool:
    """Return True if the next owner may send the call again: the tool is idempotent, and the call was sent once."""
    return task.is_repeatable and task.runs == 1


def message_of(runs: int, text: str = "") -> str:
    """Return the status message of a task, which clients see. `runs` is how often the call was sent. `text` is the
    progress of the task, or describes its outcome."""
    parts = (AGAIN if runs > 1 else "", text)
    return ": ".join(part for part in parts if part)[:MAX_MESSAGE_CHARS]


def progress_text(params: Object) -> str:
    """Return the params of a progress notification as text for people. Raises `msgspec.MsgspecError`: they are
    unreadable."""
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
    """Return the reason that a failed tool gives in `result`, its result as JSON: the first text in it, shortened;
    empty if it has no text."""
    try:
        content = msgspec.json.decode(result, type=_Content).content
    except UNREADABLE:
        return ""
    return next((item.text for item in content if item.text), "")[:MAX_MESSAGE_CHARS]


def _number_text(number: object) -> str:
    """Return a number as text for people; empty if it is no number, or too large for a float."""
    try:
        return f"{number:g}" if isinstance(number, (int, float)) else ""
    except OverflowError:  # integers in JSON have any number of digits
        return ""


class _Error(msgspec.Struct):
    """The fields of a JSON-RPC error that clients read."""

    code: int = INTERNAL_ERROR
    message: str = ""


def can_be_read(outcome: bytes) -> bool:
    """Return True if an outcome (JSON) is nested at most `MAX_LEVELS` deep, so that any reader can decode it."""
    if outcome.count(b"[") + outcome.count(b"{") <= MAX_LEVELS:
        return True
    without_escapes = outcome.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = b"".join(without_escapes.split(b'"')[::2]).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(_COLLAPSED):
        brackets = brackets.replace(b"[]", b"")
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) <= MAX_LEVELS - _COLLAPSED


def error_text(error: msgspec.Raw) -> str | None:
    """Return the message of a JSON-RPC error, shortened; None if clients cannot read the error. The error's `data` is
    not decoded."""
    try:
        return msgspec.json.decode(error, type=_Error).message[:MAX_MESSAGE_CHARS]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
