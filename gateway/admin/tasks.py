"""Tasks as operators see them: which there are, and what became of each. What a task returned is its client's alone."""

from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from gateway.admin.operators import SHORTEST_PREFIX, Ambiguous, NoSuch, TaskPage, TaskQuery, TooShort
from gateway.admin.reports import TaskRow
from gateway.tasks.handles import TaskHandle, claimed
from session_store import Task, TaskStore
from session_store.session import redact

__all__ = ["TaskList", "task_row"]

SEARCHED: Final = 20_000
"""Of how many of the newest tasks a page or a name is looked for."""

_READ_AT_ONCE: Final = 1_000


class TaskList:
    """The tasks of a store."""

    def __init__(self, tasks: TaskStore, clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock

    async def page(self, query: TaskQuery) -> TaskPage:
        """A page of the tasks that match, newest first. Raises `NoSuch`: the page before ended with an unknown task, or
        the client's id of a task is given, and there is no such task."""
        if (handle := claimed(query.query)) is not None:
            return TaskPage(tasks=[task_row(await self._of_client(handle), self._clock())])
        before = (await self.found(query.after)).name if query.after else ""
        matching: list[Task] = []
        async for task in self._newest(before, query.limit + 1 if query.matches_all else _READ_AT_ONCE):
            if query.matches(task):
                matching.append(task)
                if len(matching) > query.limit:
                    break
        rows, now = matching[: query.limit], self._clock()
        after = redact(rows[-1].id) if len(matching) > query.limit else ""
        return TaskPage(tasks=[task_row(task, now) for task in rows], after=after)

    async def row(self, prefix: str) -> TaskRow:
        """The task whose id begins like that. Raises as `found`."""
        return task_row(await self.found(prefix), self._clock())

    async def found(self, prefix: str) -> Task:
        """The one task that is meant: by how its id begins, or by the id that its client has. Never a guess.

        Raises:
            NoSuch, Ambiguous, TooShort: not one task is meant.
        """
        if (handle := claimed(prefix)) is not None:
            return await self._of_client(handle)
        if len(prefix) < SHORTEST_PREFIX:
            raise TooShort("task")
        matching = [task async for task in self._newest("", _READ_AT_ONCE) if task.id.startswith(prefix)]
        if len(matching) > 1:
            raise Ambiguous(f"more than one task begins with {prefix!r}: give more characters of the id")
        if not matching:
            raise NoSuch(f"no task begins with {prefix[:64]!r}: it has expired, or never was")
        # The list has tasks without their questions, which are counted.
        return await self._tasks.get(matching[0].session_id, matching[0].id) or matching[0]

    async def _of_client(self, handle: TaskHandle) -> Task:
        if handle.kind == "relayed":
            raise NoSuch(f"server {handle.server!r} has made this task, and only the server knows it")
        task = await self._tasks.get(handle.session_id, handle.id)
        if task is None:
            raise NoSuch("the task has expired, or its session was ended")
        return task

    async def _newest(self, before: str, size: int) -> AsyncIterator[Task]:
        for _ in range(0, SEARCHED, size):
            page = await self._tasks.page(before=before, limit=size)
            for task in page:
                yield task
            if len(page) < size:
                return
            before = page[-1].name


def task_row(task: Task, now: float) -> TaskRow:
    """A task as operators see it. What was asked of its client is counted, and what it returned is left out."""
    error = msgspec.json.decode(task.error, type=_Error) if task.error else _Error()
    return TaskRow(
        task=redact(task.id),
        session=redact(task.session_id),
        principal=str(task.principal),
        endpoint=task.endpoint,
        server=task.server,
        tool=task.tool,
        status=task.status,
        message=task.message,
        age_s=round(max(0.0, now - task.created_at), 1),
        idle_s=round(max(0.0, now - task.updated_at), 1),
        expires_in_s=round(task.expires_at - now, 1),
        runs=task.runs,
        asked=task.asked,
        error_code=error.code,
        error=error.message,
        tool_error=task.is_tool_error,
    )


class _Error(msgspec.Struct):
    """A JSON-RPC error."""

    code: int = 0
    message: str = ""
