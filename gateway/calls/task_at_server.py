"""The task that a server has made of a call, for calls that may outlive the process which has sent them."""

from typing import Final

import msgspec

from transports.era import Era

__all__ = ["MAX_ID_CHARS", "BecomesTask", "TaskAtServer"]

MAX_ID_CHARS: Final = 1_024
"""Of the id that a server gives a task which the gateway follows, and of the time of its creation."""


class TaskAtServer(msgspec.Struct, frozen=True):
    """`id` is the server's own, `created_at` the time as the server has written it, and `era` that of the server."""

    id: str
    created_at: str
    era: Era


class BecomesTask:
    """The part of an exchange that learns what its call has become at its server."""

    @property
    def keeps_task_at_server(self) -> bool:
        """Whether a later process follows the server's task, so that the task is not cancelled with this exchange."""
        return False

    def has_become(self, task: TaskAtServer) -> None:
        """The server has made that task of the call. It goes on without this process."""
