"""Tasks in this process."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final

from msgspec.structs import replace

from session_store.ports.errors import StoreFull
from session_store.ports.tasks import Task
from session_store.task_record import without_body

__all__ = ["MemoryTasks"]

MAX_TASKS: Final = 10_000
"""Tasks that one process keeps: a task with a result may take a megabyte."""


class MemoryTasks:
    """Tasks by their names, oldest first. They are lost with the process."""

    def __init__(self, clock: Callable[[], float], max_tasks: int = MAX_TASKS) -> None:
        self._clock = clock
        self._max = max_tasks
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    async def create(self, task: Task) -> None:
        if len(self._tasks) >= self._max:
            self._forget_expired()
        if len(self._tasks) >= self._max:
            raise StoreFull(f"{self._max} tasks are stored already")
        self._tasks[task.name] = task

    async def get(self, session_id: str, task_id: str) -> Task | None:
        return self._live(f"{session_id}/{task_id}")

    async def replace(self, task: Task) -> bool:
        stored = self._live(task.name)
        if stored is None or stored.version != task.version:
            return False
        self._tasks[task.name] = replace(task, version=task.version + 1)
        return True

    async def of_session(self, session_id: str) -> list[Task]:
        now = self._clock()
        return [t for t in self._tasks.values() if t.session_id == session_id and now < t.expires_at]

    async def page(self, *, before: str = "", limit: int = 100) -> list[Task]:
        self._forget_expired()
        newest = iter(reversed(self._tasks.values()))
        if before:
            for task in newest:
                if task.name == before:
                    break
        return [without_body(task) for task in islice(newest, limit)]

    async def drop_session(self, session_id: str) -> None:
        for task in await self.of_session(session_id):
            del self._tasks[task.name]

    def _live(self, name: str) -> Task | None:
        task = self._tasks.get(name)
        if task is not None and self._clock() >= task.expires_at:
            del self._tasks[name]
            return None
        return task

    def _forget_expired(self) -> None:
        now = self._clock()
        for name in [name for name, task in self._tasks.items() if now >= task.expires_at]:
            del self._tasks[name]
