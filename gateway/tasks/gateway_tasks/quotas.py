"""Limit the tasks of a session and of a principal, in number and in bytes, across all replicas.

With a limit on the number alone, each principal could store gigabytes of results. So bytes are counted too. They are
counted in units: each unit is one name in a quota of the store. Other names in the store say which replica runs which
tasks.
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
from session_store.ports.tasks import ids_of

_FULL_S: Final = 2.0
"""Seconds before a full quota is searched again for expired tasks, so that not every slow call causes a search."""

_MAX_CHECKED: Final = 32
"""Maximum number of tasks that one search of a full quota looks up."""

LEAST_KEPT_S: Final = 259_200.0
"""Minimum seconds for which task names are stored after the last one was added. It is longer than sessions live."""

LEFT: Final = "left"
"""Stands in place of a replica's name for tasks that a living replica has released. Any replica may take them over."""

_OWNERS: Final = "tasks/replicas"
_NO_LIMIT: Final = 1 << 30

MAX_PER_SESSION: Final = 100
"""Maximum number of stored tasks of one session: more than a client follows, and a client in a loop fills no store."""

MAX_PER_PRINCIPAL: Final = 1_000
"""Maximum number of stored tasks of one principal, or of the anonymous clients of one network."""

_PRINCIPAL_BYTES: Final = 256 << 20
"""Maximum number of bytes that the tasks of one principal have stored, about."""

_UNITS: Final = 1_024
"""Units of bytes per principal. A task's bytes beyond whole units are not counted: `MAX_PER_PRINCIPAL` limits them."""

_REMEMBERED: Final = 4_096
"""Maximum number of tasks whose units are cached, because a task is written many times."""


def names_kept_s(settings: TaskSettings) -> float:
    """Return for how many seconds the store keeps a task's names in quotas after they were added or renewed. That is at
    least twice the lifetime of a working task's record, which is renewed when half of its lifetime has passed."""
    return max(LEAST_KEPT_S, 2 * settings.working_ttl_s(settings.ttl_s))


class Places:
    """Acquires and releases the places of tasks in quotas, which are limited sets of names in the store. The places of
    expired tasks are released when a full quota is searched. A quota is stored for `kept_s` seconds after its last
    place was acquired."""

    def __init__(self, quotas: Quotas, store: TaskStore, kept_s: float) -> None:
        self._quotas = quotas
        self._store = store
        self._kept_s = kept_s
        self._full: TTLCache[str, bool] = TTLCache(4_096, _FULL_S)

    async def hold(self, key: str, name: str, most: int) -> bool:
        """Acquire a place in the quota `key`, which has `most` places. Return False if none is free. `name` names the
        place: it is the name of a task (`Task.name`), or begins with it and `#`. Raises `StoreUnavailable`."""
        if key in self._full:
            return False
        held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
        if held and (gone := await self._gone(held)):
            await self._quotas.give_back(key, gone)
            held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
        if held:
            self._full[key] = True
        return not held

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        """Release the places `names` in the quota `key`. If the store does not answer, the places stay until their
        tasks have expired and the full quota is searched."""
        self._full.pop(key, None)
        with contextlib.suppress(StoreUnavailable):
            await self._quotas.give_back(key, names)

    async def _gone(self, names: list[str]) -> list[str]:
        """Return those of the places `names` whose tasks have expired. Only a random sample of the tasks is checked."""
        tasks = sorted({name.partition("#")[0] for name in names})
        some = random.sample(tasks, min(len(tasks), _MAX_CHECKED))
        gone = {task for task in some if await self._store.get(*ids_of(task)) is None}
        return [name for name in names if name.partition("#")[0] in gone]


class TaskQuotas:
    """Counts the stored tasks of each session and principal, and limits them."""

    def __init__(self, settings: TaskSettings, quotas: Quotas, store: TaskStore) -> None:
        self._quotas = quotas
        self._places = Places(quotas, store, names_kept_s(settings))

    async def hold(self, task: Task) -> bool:
        """Count a task that is about to be stored, for its session and for its principal. Return False, and do not
        count the task, if one of them has the maximum number of tasks. Raises `StoreUnavailable`."""
        session, principal = _keys(task)
        if not await self._places.hold(session, task.name, MAX_PER_SESSION):
            return False
        if await self._places.hold(principal, task.name, MAX_PER_PRINCIPAL):
            return True
        await self._places.give_back(session, [task.name])
        return False

    async def give_back(self, task: Task) -> None:
        """Stop counting a task that was not stored, or is deleted."""
        for key in _keys(task):
            await self._places.give_back(key, [task.name])

    async def of_principal(self, principal: Principal) -> list[str]:
        """Return the names of a principal's tasks, some of which may have expired. The principal must not be anonymous.
        Raises `StoreUnavailable`."""
        return await _all(self._quotas, _of_principal(principal.key))


class RunningNames:
    """Records in the store which replica runs which tasks, so that other replicas find the tasks of one that has died.
    `replica` is the name of this replica.

    The names are stored in quotas without a limit, which serve as sets.
    """

    def __init__(self, quotas: Quotas, replica: str, kept_s: float = LEAST_KEPT_S) -> None:
        self.replica = replica
        self._kept_s = kept_s
        self._quotas = quotas
        self._known_until = 0.0

    async def add(self, name: str) -> None:
        """Record that this replica is about to run the task `name` (`Task.name`). Raises `StoreUnavailable`."""
        if monotonic() >= self._known_until:
            await self._quotas.hold(_OWNERS, self.replica, _NO_LIMIT, for_s=self._kept_s)
            self._known_until = monotonic() + self._kept_s / 4
        await self._quotas.hold(_running(self.replica), name, _NO_LIMIT, for_s=self._kept_s)

    async def renew(self, task: Task) -> None:
        """Store the name of a task that runs for long for another `kept_s` seconds, in all three quotas that have it:
        of this replica, of the task's session and of its principal. Raises `StoreUnavailable`."""
        await self.add(task.name)
        for key in _keys(task):
            await self._quotas.hold(key, task.name, _NO_LIMIT, for_s=self._kept_s)

    async def leave(self, name: str) -> None:
        """Record that this replica, which is still alive, no longer runs the task `name`, so that any replica may take
        the task over. Raises `StoreUnavailable`."""
        await self._quotas.hold(_running(LEFT), name, _NO_LIMIT, for_s=self._kept_s)
        await self._quotas.hold(_OWNERS, LEFT, _NO_LIMIT, for_s=self._kept_s)
        await self.remove(name)

    async def remove(self, name: str, replica: str = "") -> None:
        """Delete the record that a replica runs the task `name`. If `replica` is empty, it is this replica. Raises
        `StoreUnavailable`."""
        await self._quotas.give_back(_running(replica or self.replica), [name])

    async def replicas(self) -> list[str]:
        """Return the names of the replicas that have recorded tasks, dead ones too. If replicas have released tasks
        (`leave`), `LEFT` is one of the names. Raises `StoreUnavailable`."""
        return await _all(self._quotas, _OWNERS)

    async def of(self, replica: str) -> list[str]:
        """Return the names of the tasks that a replica runs or, if `replica` is `LEFT`, that any replica may take over.
        Raises `StoreUnavailable`."""
        return await _all(self._quotas, _running(replica))

    async def forget(self, replica: str) -> None:
        """Remove a dead replica, which has no tasks left, from `replicas`. Keep it there if it has got a task
        meanwhile. Raises `StoreUnavailable`."""
        await self._quotas.give_back(_OWNERS, [replica])
        if await self.of(replica):  # one was added meanwhile
            await self._quotas.hold(_OWNERS, replica, _NO_LIMIT, for_s=self._kept_s)


async def _all(quotas: Quotas, key: str) -> list[str]:
    """Return all names in a quota. Raises `StoreUnavailable`."""
    return await quotas.hold(key, "", 0, for_s=0.0)  # a set that may hold none is always full


def _running(replica: str) -> str:
    return f"tasks/running/{replica}"


def _keys(task: Task) -> tuple[str, str]:
    return f"tasks/session/{task.session_id}", _of_principal(task.counted_as)


def _of_principal(counted_as: str) -> str:
    return f"tasks/principal/{counted_as}"


class BoundedTasks:
    """Wraps a task store. Raises `StoreFull` for a write that would give the tasks of one principal more than about
    `most_bytes` bytes.

    Anonymous clients are counted by their network (`Task.counted_as`). A task counts with its largest size so far until
    it expires.
    """

    def __init__(
        self, store: TaskStore, quotas: Quotas, names_kept_s: float = LEAST_KEPT_S, most_bytes: int = _PRINCIPAL_BYTES
    ) -> None:
        self._store = store
        self._places = Places(quotas, store, names_kept_s)
        self._unit = most_bytes // _UNITS
        self._bytes = most_bytes
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
        size = sum(map(len, (task.request, task.questions, task.answers, task.result, task.error)))
        units = [f"{task.name}#{number}" for number in range(size // self._unit)]
        if len(units) <= self._held.get(task.name, 0):
            return
        key = f"tasks/bytes/{task.counted_as}"
        async with self._turns:  # or several tasks would each take a part of the room, and none would get enough
            for number, unit in enumerate(units):
                if number < self._held.get(task.name, 0):
                    continue
                if await self._places.hold(key, unit, _UNITS):
                    self._held[task.name] = number + 1
                    continue
                if task.is_over:  # its outcome will not be stored
                    self._held.pop(task.name, None)
                    await self._places.give_back(key, units)
                raise StoreFull(f"the tasks of its principal have {self._bytes} bytes, which is the most")
