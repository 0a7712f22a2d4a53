"""The life of a task that the gateway makes, as a table. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from gateway.calls.lifecycles import step
from session_store import TaskStatus

__all__ = ["TASK", "TaskEvent", "TaskState", "after"]


class TaskState(StrEnum):
    """The state of a task, as clients see it (extension `io.modelcontextprotocol/tasks`, Task Status)."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    """Its client was asked something; the call waits for the answer."""
    COMPLETED = "completed"
    """The server has answered with a result, that of a failed tool included."""
    FAILED = "failed"
    """The call has ended with a JSON-RPC error, the one that its outcome is unknown included."""
    CANCELLED = "cancelled"
    """Cancelled by the client or an operator, or because its session has ended."""


class TaskEvent(StrEnum):
    """What happens to a task."""

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


_S, _E = TaskState, TaskEvent
_ENDS: Final = {_E.COMPLETE: _S.COMPLETED, _E.FAIL: _S.FAILED, _E.CANCEL: _S.CANCELLED}

TASK: Final[Mapping[TaskState, Mapping[TaskEvent, TaskState]]] = {
    _S.WORKING: {_E.ASK: _S.INPUT_REQUIRED, _E.FOLLOW: _S.WORKING, _E.RUN_AGAIN: _S.WORKING, **_ENDS},
    _S.INPUT_REQUIRED: {
        _E.ASK: _S.INPUT_REQUIRED,
        _E.RESUME: _S.WORKING,
        _E.FOLLOW: _S.WORKING,
        _E.RUN_AGAIN: _S.WORKING,
        **_ENDS,
    },
    # An outcome stays what it is.
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}


def after(status: TaskStatus, event: TaskEvent) -> TaskStatus:
    """The status after `event`. Raises `IllegalStep`: the event cannot happen in that state."""
    return step(TASK, TaskState(status), event).value
