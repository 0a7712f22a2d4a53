"""Bounds how many tasks a session and a principal may have, and how many bytes of them, on all replicas together.

Names in the store say which replica runs which tasks. The number of tasks times the size of a result allows each
principal gigabytes in a store that all share: so bytes are counted in units, each a name of a quota.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from time import monotonic
from typing import Final

from cachetools import LRUCache, TTLCache

from gateway.config.limits import TaskSettings
from session_store import Principal, Quotas, StoreFull, StoreUnavailable, Task, TaskStore

__all__ = ["LEFT", "BoundedTasks", "Places", "RunningNames", "TaskQuotas", "names_kept_s", "parts_of"]

_FULL_S: Final = 2.0
"""How long a full quota is not searched again: not every slow call may cost a search."""

_MAX_CHECKED: Final = 32
"""How many tasks of a full quota one search looks up."""

LEAST_KEPT_S: Final = 259_200.0
"""How long the names of tasks are kept at least after the last one was added: longer than sessions live."""

LEFT: Final = "left"
"""In place of a replica: tasks that a living replica has left, for whoever finds them first."""

_OWNERS: Final = "tasks/replicas"
_NO_LIMIT: Final = 1 << 30

_UNITS: Final = 1_024
"""Units of a principal. What is smaller than one is not counted: there are `max_per_principal` of that at most."""

_REMEMBERED: Final = 4_096
"""Tasks of which the units are remembered here: a task is written many times."""


def names_kept_s(settings: TaskSettings) -> float:
    """Return how long the names of tasks are kept after the last one was added, or one was renewed: no task is kept
    longer, and one that works is renewed when half of its time has passed."""
    return max(LEAST_KEPT_S, 2 * settings.working_ttl_s(settings.ttl_s))


class Places:
    """The places of tasks in quotas. A task that expires does not release its places: such places are found when a
    quota appears exhausted. The places of a key are kept for `kept_s` after the last one was taken."""

    def __init__(self, quotas: Quotas, store: TaskStore, kept_s: float = LEAST_KEPT_S) -> None:
        self._quotas = quotas
        self._store = store
        self._kept_s = kept_s
        self._full: TTLCache[str, bool] = TTLCache(4_096, _FULL_S)

    async def hold(self, key: str, name: str, most: int) -> bool:
        """Take one of `most` places. `name` is that of a task (`Task.name`), or begins with it and a `#`. False: there
        are as many already. Raises `StoreUnavailable`."""
        if key in self._full:
            return False
        held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
        if held and (gone := await self._gone(held)):
            await self._quotas.give_back(key, gone)
            held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
        if held:
            self._full[key] = True
        return not held

    async def names(self, key: str) -> list[str]:
        """Return the names of all places that are taken. Raises `StoreUnavailable`."""
        return await _all(self._quotas, key)

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        """Release places. Those that an unreachable store keeps are found later."""
        self._full.pop(key, None)
        with contextlib.suppress(StoreUnavailable):
            await self._quotas.give_back(key, names)

    async def _gone(self, names: list[str]) -> list[str]:
        """Return the places of tasks that the store has forgotten, among those of some tasks."""
        tasks = sorted({name.partition("#")[0] for name in names})
        some = random.sample(tasks, min(len(tasks), _MAX_CHECKED))
        gone = {task for task in some if await self._store.get(*parts_of(task)) is None}
        return [name for name in names if name.partition("#")[0] in gone]


class TaskQuotas:
    """Counts the tasks that are stored."""

    def __init__(self, settings: TaskSettings, quotas: Quotas, store: TaskStore) -> None:
        self._settings = settings
        self._places = Places(quotas, store, names_kept_s(settings))

    async def hold(self, task: Task) -> bool:
        """Count a task that is about to be stored. False: there are too many already. Raises `StoreUnavailable`."""
        session, principal = _keys(task)
        if not await self._places.hold(session, task.name, self._settings.max_per_session):
            return False
        if await self._places.hold(principal, task.name, self._settings.max_per_principal):
            return True
        await self._places.give_back(session, [task.name])
        return False

    async def give_back(self, task: Task) -> None:
        """Stop counting a task that was not stored, or is deleted."""
        for key in _keys(task):
            await self._places.give_back(key, [task.name])

    async def of_principal(self, principal: Principal) -> list[str]:
        """Return the names of the tasks of a principal that is not anonymous. Some may have expired. Raises
        `StoreUnavailable`."""
        return await self._places.names(_of_principal(principal.key))


class RunningNames:
    """Which replica runs which tasks, for the case that it dies. `replica` is this one.

    The names are kept in sets of the quotas, which nobody counts.
    """

    def __init__(self, quotas: Quotas, replica: str, kept_s: float = LEAST_KEPT_S) -> None:
        self.replica = replica
        self._kept_s = kept_s
        self._quotas = quotas
        self._known_until = 0.0

    async def add(self, name: str) -> None:
        """Record that this replica is about to run a task. Raises `StoreUnavailable`."""
        if monotonic() >= self._known_until:
            await self._quotas.hold(_OWNERS, self.replica, _NO_LIMIT, for_s=self._kept_s)
            self._known_until = monotonic() + self._kept_s / 4
        await self._quotas.hold(_running(self.replica), name, _NO_LIMIT, for_s=self._kept_s)

    async def renew(self, task: Task) -> None:
        """Keep the name of a task that works for longer than its record was to be kept, also among those of its session
        and principal. Raises `StoreUnavailable`."""
        await self.add(task.name)
        for key in _keys(task):
            await self._quotas.hold(key, task.name, _NO_LIMIT, for_s=self._kept_s)

    async def add_left(self, name: str) -> None:
        """Note a task that this replica has begun and nobody runs, although it lives. Raises `StoreUnavailable`."""
        await self._quotas.hold(_running(LEFT), name, _NO_LIMIT, for_s=self._kept_s)
        await self._quotas.hold(_OWNERS, LEFT, _NO_LIMIT, for_s=self._kept_s)

    async def remove(self, name: str, replica: str = "") -> None:
        """Forget that a replica, this one by default, runs a task. Raises `StoreUnavailable`."""
        await self._quotas.give_back(_running(replica or self.replica), [name])

    async def replicas(self) -> list[str]:
        """Return the replicas that have run tasks and were not forgotten. Raises `StoreUnavailable`."""
        return await _all(self._quotas, _OWNERS)

    async def of(self, replica: str) -> list[str]:
        """Return the names of the tasks of a replica. Raises `StoreUnavailable`."""
        return await _all(self._quotas, _running(replica))

    async def forget(self, replica: str) -> None:
        """Forget a replica that is gone and has left no task. Raises `StoreUnavailable`."""
        await self._quotas.give_back(_OWNERS, [replica])
        if await self.of(replica):  # one was added meanwhile
            await self._quotas.hold(_OWNERS, replica, _NO_LIMIT, for_s=self._kept_s)


async def _all(quotas: Quotas, key: str) -> list[str]:
    """Return the names of a set."""
    return await quotas.hold(key, "", 0, for_s=0.0)  # a set that may hold none is always full


def _running(replica: str) -> str:
    return f"tasks/running/{replica}"


def _keys(task: Task) -> tuple[str, str]:
    return f"tasks/session/{task.session_id}", _of_principal(task.counted_as)


def _of_principal(counted_as: str) -> str:
    return f"tasks/principal/{counted_as}"


def parts_of(name: str) -> tuple[str, str]:
    """Session and id of the task of that name (`Task.name`)."""
    session_id, _, task_id = name.partition("/")
    return session_id, task_id


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
