"""`gateway.admin.tasks`: pages of tasks, names that are never guessed, and what operators are not shown."""

from typing import Any

import msgspec
import pytest

from gateway.admin.operators import Ambiguous, NoSuch, OperatorError, TaskQuery, TooShort
from gateway.admin.tasks import TaskList, task_row
from session_store import MemoryBackend, Task
from session_store.testing import BOB, FakeClock, a_task
from tests.requirements import requirement

pytestmark = [pytest.mark.anyio, requirement("task.operators")]


class Parts:
    """A list of tasks in memory."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.backend = MemoryBackend(clock=self.clock)
        self.list = TaskList(self.backend.tasks, self.clock)

    async def holding(self, *ids: str, **fields: Any) -> list[Task]:
        tasks = [a_task(self.clock, id=one, **fields) for one in ids]
        for task in tasks:
            self.clock.pass_time(1.0)
            await self.backend.tasks.create(task)
        return tasks


async def test_pages_follow_each_other_newest_first() -> None:
    parts = Parts()
    await parts.holding(*(f"{letter * 8}-rest" for letter in "abcde"))
    first = await parts.list.page(TaskQuery(limit=2))
    assert ([row.task for row in first.tasks], first.after) == (["eeeeeeee", "dddddddd"], "dddddddd")
    second = await parts.list.page(TaskQuery(limit=2, after=first.after))
    third = await parts.list.page(TaskQuery(limit=2, after=second.after))
    assert ([row.task for row in third.tasks], third.after) == (["aaaaaaaa"], "")


async def test_tasks_are_found_by_status_and_by_their_facts() -> None:
    parts = Parts()
    await parts.holding("one-of-alice")
    await parts.holding("two-of-bobby", principal=BOB, tool="index", status="failed", message="Disk full")
    for query, found in [
        (TaskQuery(query="bob"), ["two-of-b"]),
        (TaskQuery(query="disk index"), ["two-of-b"]),
        (TaskQuery(query="disk search"), []),
        (TaskQuery(query="one-of"), ["one-of-a"]),
        (TaskQuery(status="failed"), ["two-of-b"]),
        (TaskQuery(status="completed"), []),
        (TaskQuery(), ["two-of-b", "one-of-a"]),
    ]:
        assert [row.task for row in (await parts.list.page(query)).tasks] == found, query
    with pytest.raises(OperatorError, match="status: must be one of working, "):
        TaskQuery(status="lost")


async def test_a_task_is_never_guessed() -> None:
    parts = Parts()
    await parts.holding("same-one", "same-two", "different")
    for prefix, kind in [("sam", TooShort), ("none", NoSuch), ("same", Ambiguous)]:
        with pytest.raises(kind):
            await parts.list.row(prefix)
    assert (await parts.list.row("same-o")).task == "same-one"


async def test_what_a_task_was_given_and_returned_is_not_shown() -> None:
    parts = Parts()
    error = msgspec.json.encode({"code": -32603, "message": "why it failed", "data": "private"})
    (task,) = await parts.holding("a-task-with-all", result=b"private", request=b"private", error=error, asked=2)
    parts.clock.pass_time(9.0)
    row = task_row(task, parts.clock())
    assert (row.error_code, row.error, row.asked, row.age_s) == (-32603, "why it failed", 2, 10.0)
    assert b"private" not in msgspec.json.encode(row) and task.id.encode() not in msgspec.json.encode(row)
    assert (await parts.list.row("a-task")).asked == 2
