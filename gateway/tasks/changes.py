"""Notifies all replicas that a task has changed, so that those with subscribers can tell them."""

import contextlib

from session_store import Bus, StoreUnavailable, Task
from transports.tasks import Tasks

__all__ = ["TaskChanges", "topic_of"]


def topic_of(session_id: str) -> str:
    """The bus topic of a session's tasks. A message is the id of the task (`Task.id`) that has changed."""
    return f"mcp:tasks:{session_id}"


class TaskChanges:
    """Publishes changes. A message that is lost does no harm: subscribers read the record, and clients may poll."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks = Tasks("changes of tasks")

    def publish(self, task: Task) -> None:
        """The store has another version of the task."""
        self._tasks.spawn(self._publish(task))

    async def _publish(self, task: Task) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._bus.publish(topic_of(task.session_id), task.id.encode())
