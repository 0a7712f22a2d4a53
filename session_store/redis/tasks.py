"""Keep tasks in Redis, where all replicas share them: one Redis hash for each task, which Redis deletes when it
expires."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from session_store.ports.errors import StoreUnavailable
from session_store.ports.tasks import Task, head_of, ids_of, joined, parts, task_name
from session_store.redis import keys
from session_store.redis.commands import RedisPart, script

_CREATE: Final = script("task_create")
_REPLACE: Final = script("task_replace")
_NAME: Final = script("task_name")

MAX_NAMES: Final = 100_000
"""The most tasks that operators can page through."""


class RedisTasks(RedisPart):
    """Store tasks in Redis by session and id. The lists of tasks, that of a session and that of all, may have names of
    tasks that have expired.

    A task and the list of its session's tasks are in one slot of a cluster, and change together.
    """

    async def create(self, task: Task) -> None:
        places = [keys.task(task.session_id, task.id), keys.tasks_of(task.session_id)]
        left = self._left_ms(task)
        await self._commands.call(_CREATE, places, task.version, *parts(task), left, task.created_at, task.id)
        try:
            await self._commands.call(_NAME, [keys.TASKS], task.created_at, task.name, left, MAX_NAMES)
        except StoreUnavailable as error:  # whether or not it was executed, the task is stored
            raise StoreUnavailable(*error.args) from error

    async def get(self, session_id: str, task_id: str) -> Task | None:
        head, body = await self._commands.run("HMGET", keys.task(session_id, task_id), "head", "body")
        return None if head is None else self._live(joined(head, body))

    async def replace(self, task: Task) -> bool:
        after = replace(task, version=task.version + 1)
        left = self._left_ms(task)
        if left <= 0:
            return False
        places = [keys.task(task.session_id, task.id), keys.tasks_of(task.session_id)]
        return bool(await self._commands.call(_REPLACE, places, task.version, *parts(after), left))

    async def of_session(
        self, session_id: str, *, after: tuple[float, str] = (0.0, ""), limit: int = 100
    ) -> list[Task]:
        place = keys.tasks_of(session_id)
        query = ("ZRANGEBYSCORE", place, repr(after[0]), "+inf")
        return await self._listed(
            query, lambda task_id: task_name(session_id, task_id), lambda task: task.place > after, limit
        )

    async def page(self, *, before: Task | None = None, limit: int = 100) -> list[Task]:
        query = ("ZREVRANGEBYSCORE", keys.TASKS, "+inf" if before is None else repr(before.created_at), "-inf")
        return await self._listed(
            query, str, lambda task: before is None or task.place_of_all < before.place_of_all, limit
        )

    async def _listed(
        self, query: tuple[str, ...], name_of: Callable[[str], str], is_wanted: Callable[[Task], bool], limit: int
    ) -> list[Task]:
        """Return the heads of the first `limit` wanted tasks of a list, in the order of `query`, the command that reads
        it. `name_of` returns the name of a task by its member of the list. Remove members whose task is gone."""
        place = query[1]
        found: list[Task] = []
        start = 0  # offset in the result of the query
        while len(found) < limit:
            members = [member.decode() for member in await self._commands.run(*query, "LIMIT", start, limit)]
            if not members:
                break
            heads = await self._heads([name_of(member) for member in members])
            found += [task for head in heads if (task := self._read(head)) is not None and is_wanted(task)]
            stale = [member for member, head in zip(members, heads, strict=True) if head is None]
            if stale:
                await self._commands.run("ZREM", place, *stale)
            start += len(members) - len(stale)
        return found[:limit]

    async def drop_session(self, session_id: str) -> None:
        place = keys.tasks_of(session_id)
        ids = await self._commands.run("ZRANGE", place, 0, -1)
        await self._commands.run("DEL", place, *(keys.task(session_id, task_id.decode()) for task_id in ids))

    async def heads(self, names: Sequence[str]) -> list[Task]:
        return [task for head in await self._heads(names) if (task := self._read(head)) is not None]

    async def _heads(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the encoded heads of these tasks (`session_store.ports.tasks.parts`), in order; None for an unknown
        task. The commands are sent together."""
        places = [keys.task(*ids_of(name)) for name in names]
        heads: list[bytes | None] = await asyncio.gather(
            *(self._commands.run("HGET", place, "head") for place in places)
        )
        return heads

    def _read(self, head: bytes | None) -> Task | None:
        return None if head is None else self._live(head_of(head))

    def _live(self, task: Task) -> Task | None:
        return task if self._clock() < task.expires_at else None

    def _left_ms(self, task: Task) -> int:
        return math.ceil((task.expires_at - self._clock()) * 1_000)
