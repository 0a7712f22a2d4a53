"""Keep tasks in the memory of this process."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import nlargest, nsmallest
from typing import Final

from msgspec.structs import replace

from session_store.ports.errors import StoreFull
from session_store.ports.tasks import Task, task_name, without_body

MAX_TASKS: Final = 10_000
"""The most tasks that one process stores."""

MAX_BYTES: Final = 256 << 20
"""The most bytes of all tasks together, approximately."""

_OF_ANONYMOUS: Final = 2
"""Divisor of the limits: all anonymous clients together may have half of the tasks and bytes, so that named principals
have room."""

_OF_NETWORK: Final = 4
"""Divisor of the limits: the anonymous clients of one network may have a quarter of the tasks and bytes."""

_OVERHEAD: Final = 2_048
"""The approximate bytes of a task without its texts."""

_LEAST: Final = 4_096
"""The fewest bytes that are counted for a task. So there is always room to record that a task's outcome was not
stored."""


class MemoryTasks:
    """Store tasks by name. They are lost when the process ends."""

    def __init__(self, clock: Callable[[], float], max_tasks: int = MAX_TASKS, *, max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._max = max_tasks
        self._max_bytes = max_bytes
        self._tasks: dict[str, Task] = {}
        self._held: defaultdict[str, _Held] = defaultdict(_Held)

    async def create(self, task: Task) -> None:
        self._make_room(task, 1, _size(task))
        self._put(task)

    async def get(self, session_id: str, task_id: str) -> Task | None:
        return self._live(task_name(session_id, task_id))

    async def replace(self, task: Task) -> bool:
        stored = self._live(task.name)
        if stored is None or stored.version != task.version:
            return False
        grown = _size(task) - _size(stored)
        if grown > 0:
            self._make_room(task, 0, grown)
            if task.name not in self._tasks:
                return False  # expired just now
        self._remove(task.name)
        self._put(replace(task, version=task.version + 1))
        return True

    async def of_session(
        self, session_id: str, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
    ) -> list[Task]:
        now = self._clock()
        found = [task for task in self._of_session(session_id) if now < task.expires_at and task.place > after]
        return [without_body(task) for task in nsmallest(limit, found, key=lambda task: task.place)]

    async def heads(self, names: Sequence[str]) -> list[Task]:
        found = (self._live(name) for name in names)
        return [without_body(task) for task in found if task is not None]

    async def page(self, *, before: Task | None = None, limit: int = 100) -> list[Task]:
        self._forget_expired()
        older = (task for task in self._tasks.values() if before is None or task.place_of_all < before.place_of_all)
        return [without_body(task) for task in nlargest(limit, older, key=lambda task: task.place_of_all)]

    async def drop_session(self, session_id: str) -> None:
        for task in self._of_session(session_id):
            self._remove(task.name)

    def _of_session(self, session_id: str) -> list[Task]:
        return [task for task in self._tasks.values() if task.session_id == session_id]

    def _make_room(self, task: Task, tasks: int, size: int) -> None:
        """Check that the store and the task's clients may have `tasks` more tasks, with `size` more bytes. If not,
        remove expired tasks. Raise `StoreFull` if that does not help."""
        if self._has_room(task, tasks, size):
            return
        self._forget_expired()
        if not self._has_room(task, tasks, size):
            most = f"{self._max} tasks or {self._max_bytes} bytes of tasks"
            raise StoreFull(f"{most} are stored already, or what anonymous clients may have of them")

    def _has_room(self, task: Task, tasks: int, size: int) -> bool:
        for holder, part in _holders(task):
            held = self._held.get(holder) or _Held()
            if held.tasks + tasks > max(self._max // part, 1) or held.bytes + size > self._max_bytes // part:
                return False
        return True

    def _put(self, task: Task) -> None:
        for holder, _ in _holders(task):
            held = self._held[holder]
            held.tasks += 1
            held.bytes += _size(task)
        self._tasks[task.name] = task

    def _remove(self, name: str) -> None:
        task = self._tasks.pop(name)
        for holder, _ in _holders(task):
            held = self._held[holder]
            held.tasks -= 1
            held.bytes -= _size(task)
            if not held.tasks:
                del self._held[holder]

    def _live(self, name: str) -> Task | None:
        task = self._tasks.get(name)
        if task is not None and self._clock() >= task.expires_at:
            self._remove(name)
            return None
        return task

    def _forget_expired(self) -> None:
        now = self._clock()
        for name in [name for name, task in self._tasks.items() if now >= task.expires_at]:
            self._remove(name)


class _Held:
    """The number and the bytes of the tasks that count under one key."""

    __slots__ = ("bytes", "tasks")

    def __init__(self) -> None:
        self.tasks = self.bytes = 0


def _holders(task: Task) -> list[tuple[str, int]]:
    """Return the keys under which a task is counted, each with the divisor of its limit. The key of all clients may
    have all tasks and bytes of the store (divisor 1). That of all anonymous clients may have half of them, that of one
    network of anonymous clients a quarter."""
    if not task.principal.is_anonymous:
        return [("", 1)]
    everyone = [("", 1), (task.principal.key, _OF_ANONYMOUS)]
    return [*everyone, (task.counted_as, _OF_NETWORK)] if task.origin else everyone


def _size(task: Task) -> int:
    texts = (task.request, task.questions, task.answers, task.result, task.error, task.message)
    return max(_LEAST, _OVERHEAD + sum(map(len, texts)))
