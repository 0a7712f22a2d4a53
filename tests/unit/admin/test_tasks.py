"""`gateway.admin.tasks`: pages of tasks, names that are never guessed, and what operators are not shown."""

from typing import Any

import msgspec
import pytest

from gateway.admin.operators import Ambiguous, NoSuch, OperatorError, TaskQuery, TooShort
from gateway.admin.tasks import task_row
from session_store import Task
from session_store.testing import BOB, a_task
from tests.requirements import requirement
from tests.unit.admin.test_operations import Parts

pytestmark = [pytest.mark.anyio, requirement("task.operators")]


async def hold(parts: Parts, *ids: str, **fields: Any) -> list[Task]:
    """Tasks of which each is a second younger than the one before."""
    tasks = [a_task(parts.clock, id=one, **fields) for one in ids]
    for task in tasks:
        parts.clock.pass_time(1.0)
        await parts.backend.tasks.create(task)
    return tasks


async def test_pages_follow_each_other_newest_first() -> None:
    parts = Parts()
    await hold(parts, *(f"{letter * 8}-rest" for letter in "abcde"))
    first = await parts.operations.tasks(TaskQuery(limit=2))
    assert ([row.task for row in first.tasks], first.after) == (["eeeeeeee", "dddddddd"], "dddddddd")
    second = await parts.operations.tasks(TaskQuery(limit=2, after=first.after))
    third = await parts.operations.tasks(TaskQuery(limit=2, after=second.after))
    assert ([row.task for row in third.tasks], third.after) == (["aaaaaaaa"], "")


async def test_tasks_are_found_by_status_and_by_their_facts() -> None:
    parts = Parts()
    await hold(parts, "one-of-alice")
    await hold(parts, "two-of-bobby", principal=BOB, tool="index", status="failed", message="Disk full")
    for query, found in [
        (TaskQuery(query="bob"), ["two-of-b"]),
        (TaskQuery(query="disk index"), ["two-of-b"]),
        (TaskQuery(query="disk search"), []),
        (TaskQuery(query="one-of"), ["one-of-a"]),
        (TaskQuery(status="failed"), ["two-of-b"]),
        (TaskQuery(status="completed"), []),
        (TaskQuery(), ["two-of-b", "one-of-a"]),
    ]:
        assert [row.task for row in (await parts.operations.tasks(query)).tasks] == found, query
    with pytest.raises(OperatorError, match="status: must be one of working, "):
        TaskQuery(status="lost")


async def test_a_task_is_never_guessed() -> None:
    parts = Parts()
    await hold(parts, "same-one", "same-two", "different")
    for prefix, kind in [("sam", TooShort), ("none", NoSuch), ("same", Ambiguous)]:
        with pytest.raises(kind):
            await parts.operations.task(prefix)
    assert (await parts.operations.task("same-o")).task == "same-one"


async def test_what_a_task_was_given_and_returned_is_not_shown() -> None:
    parts = Parts()
    error = msgspec.json.encode({"code": -32603, "message": "why it failed", "data": "private"})
    (task,) = await hold(parts, "a-task-with-all", result=b"private", request=b"private", error=error, asked=2)
    parts.clock.pass_time(9.0)
    row = task_row(task, parts.clock())
    assert (row.error_code, row.error, row.asked, row.age_s) == (-32603, "why it failed", 2, 10.0)
    assert b"private" not in msgspec.json.encode(row) and task.id.encode() not in msgspec.json.encode(row)
    assert (await parts.operations.task("a-task")).asked == 2
