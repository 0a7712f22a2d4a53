"""Define the states of a made task. Build its message, and check that any reader can decode its outcome. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final

import msgspec

from gateway.calls.lifecycles import step
from session_store import Task, TaskStatus
from transports.jsonrpc import INTERNAL_ERROR, Object

MAX_MESSAGE_CHARS: Final = 1_024
"""Limit on the characters of a task's message. Longer ones are cut."""

AGAIN: Final = "started again, because the gateway that ran it ended without an answer"
"""The beginning of each message of a task that runs again, also of the message about its outcome."""

MAX_LEVELS: Final = 500
"""Limit on the nesting of arrays and objects in a stored outcome. The depth that a reader can decode depends on its
Python (3.11 shares 1,000 levels with the stack, 3.13 has 10,000, 3.14 as many as the stack's memory holds). Replicas of
one store may run different versions. Each of them reads this depth, however deep its stack is."""

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

_ALIKE: Final = bytes.maketrans(b"{}", b"[]")

_STEPS: Final = {ord("["): 1, ord("]"): -1}

_COLLAPSED: Final = 4
"""Innermost levels that are removed before the others are counted. It makes wide data, such as a table, small."""


class TaskEvent(StrEnum):
    """The events of a task."""

    ASK = "ask"
    RESUME = "resume"
    """All questions are answered, or withdrawn."""
    FOLLOW = "follow"
    """Its owner is gone, and the next one follows the task that the server has made of the call."""
    RUN_AGAIN = "run again"
    """Its owner is gone, and the tool says that calling it twice does no more than calling it once."""
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
    """Return the status of a task after `event`. Raises `IllegalStep`: the event cannot happen in that state."""
    return step(TASK, status, event)


def may_run_again(task: Task) -> bool:
    """Return True if a later owner may send the call again: its tool is idempotent, and this is the first run."""
    return task.is_repeatable and task.runs == 1


def message_of(runs: int, text: str = "") -> str:
    """Return the message of a task that was started `runs` times. `text` is its progress, or describes its outcome."""
    parts = (AGAIN if runs > 1 else "", text)
    return ": ".join(part for part in parts if part)[:MAX_MESSAGE_CHARS]


def progress_text(params: Object) -> str:
    """Return a progress notification's params as text for people. Raises `msgspec.MsgspecError`: unreadable params."""
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
    """Return the reason that a failed tool gives: the first text of its result, cut. Empty if there is none."""
    try:
        content = msgspec.json.decode(result, type=_Content).content
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return next((item.text for item in content if item.text), "")[:MAX_MESSAGE_CHARS]


def _number_text(number: object) -> str:
    """Return a number as text for people; empty if it is no number, or too large for a float."""
    try:
        return f"{number:g}" if isinstance(number, (int, float)) else ""
    except OverflowError:  # integers in JSON have any number of digits
        return ""


class _Error(msgspec.Struct):
    """The fields of a JSON-RPC error that a client reads."""

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
    """Return the message of a JSON-RPC error, cut. None: a client could not read the error. `data` is not checked."""
    try:
        return msgspec.json.decode(error, type=_Error).message[:MAX_MESSAGE_CHARS]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
