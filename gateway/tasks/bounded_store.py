"""Bounds how many bytes of tasks one principal has in the store, on all replicas together.

The number of tasks times the size of a result allows each principal gigabytes in a store that all share. Bytes are
counted in units, each a name of a quota, so that a small task costs no command more.
"""

import asyncio
from typing import Final

from cachetools import LRUCache

from gateway.tasks.quotas import LEAST_KEPT_S, Places
from session_store import Quotas, StoreFull, Task, TaskStore

__all__ = ["BoundedTasks"]

_UNITS: Final = 1_024
"""Units of a principal. What is smaller than one is not counted: there are `max_per_principal` of that at most."""

_REMEMBERED: Final = 4_096
"""Tasks of which the units are remembered here: a task is written many times."""


class BoundedTasks:
    """A task store that raises `StoreFull` for what would take a principal beyond its bytes.

    Anonymous clients are counted by their network (`Task.counted_as`). A task counts with the most that it had, until
    it expires.
    """

    def __init__(
        self, store: TaskStore, quotas: Quotas, principal_bytes: int, names_kept_s: float = LEAST_KEPT_S
    ) -> None:
        self._store = store
        self._places = Places(quotas, store, names_kept_s)
        self._unit = principal_bytes // _UNITS
        self._bytes = principal_bytes
        self._held: LRUCache[str, int] = LRUCache(_REMEMBERED)
        self._turns = asyncio.Lock()
        self.get = store.get
        self.of_session = store.of_session
        self.heads = store.heads
        self.page = store.page
        self.drop_session = store.drop_session

    async def create(self, task: Task) -> None:
        await self._make_room(task)
        await self._store.create(task)

    async def replace(self, task: Task) -> bool:
        await self._make_room(task)
        return await self._store.replace(task)

    async def _make_room(self, task: Task) -> None:
        units = [f"{task.name}#{number}" for number in range(_size(task) // self._unit)]
        if len(units) <= self._held.get(task.name, 0):
            return
        key = f"tasks/bytes/{task.counted_as}"
        async with self._turns:  # or several would each take a part of the room, and none would have enough
            for number, unit in enumerate(units):
                if number < self._held.get(task.name, 0):
                    continue
                if await self._places.hold(key, unit, _UNITS):
                    self._held[task.name] = number + 1
                    continue
                if task.is_over:  # its outcome is not kept
                    self._held.pop(task.name, None)
                    await self._places.give_back(key, units)
                raise StoreFull(f"the tasks of its principal have {self._bytes} bytes (gateway.tasks.principal_bytes)")


def _size(task: Task) -> int:
    return sum(map(len, (task.request, task.questions, task.answers, task.result, task.error)))
