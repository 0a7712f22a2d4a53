"""The contract of a `TaskStore`."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from session_store.ports.backend import Backend
from session_store.ports.tasks import Task
from session_store.session import new_session_id
from session_store.testing.samples import ALICE, FakeClock

__all__ = ["TaskStoreContract", "a_task"]

_LARGE = b'{"data":"%s"}' % (b"x" * 8_192)


def a_task(clock: FakeClock, **fields: Any) -> Task:
    """A task created now, with some of everything in it."""
    values: dict[str, Any] = {
        "id": new_session_id(),
        "session_id": new_session_id(),
        "principal": ALICE,
        "origin": "0f1e2d3c",
        "endpoint": "/mcp",
        "server": "files",
        "tool": "search",
        "created_at": clock(),
        "updated_at": clock(),
        "ttl_s": 100.0,
        "poll_ms": 1_000,
        "request": b'{"name":"search","arguments":{"q":"\xc3\xbc"}}',
        "questions": b'{"q1":{}}',
        "result": b"\x00\xff",
    }
    return Task(**(values | fields))


@pytest.mark.anyio
class TaskStoreContract:
    """What every store of tasks does."""

    async def test_a_task_is_what_was_stored(self, backend: Backend, clock: FakeClock) -> None:
        task = a_task(clock)
        assert await backend.tasks.get(task.session_id, task.id) is None
        await backend.tasks.create(task)
        assert await backend.tasks.get(task.session_id, task.id) == task
        assert await backend.tasks.get(new_session_id(), task.id) is None
        assert await backend.tasks.get(task.session_id, new_session_id()) is None

    async def test_a_task_is_replaced_only_in_the_version_that_was_read(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        task = a_task(clock)
        assert not await backend.tasks.replace(task)
        await backend.tasks.create(task)
        changes = [replace(task, message=str(number)) for number in range(20)]
        won = await asyncio.gather(*(backend.tasks.replace(change) for change in changes))
        assert sum(won) == 1
        stored = await backend.tasks.get(task.session_id, task.id)
        assert stored == replace(changes[won.index(True)], version=2)
        assert await backend.tasks.replace(replace(stored, status="completed"))
        assert not await backend.tasks.replace(replace(stored, status="failed"))

    async def test_a_task_expires(self, backend: Backend, clock: FakeClock) -> None:
        short, long = a_task(clock), a_task(clock, ttl_s=200.0)
        for task in (short, long):
            await backend.tasks.create(task)
        clock.pass_time(99.0)
        assert await backend.tasks.get(short.session_id, short.id) == short
        clock.pass_time(1.0)
        assert await backend.tasks.get(short.session_id, short.id) is None
        assert not await backend.tasks.replace(short)
        assert await backend.tasks.of_session(short.session_id) == []
        assert await backend.tasks.get(long.session_id, long.id) == long
        assert [task.id for task in await backend.tasks.page()] == [long.id]

    async def test_a_task_may_be_given_more_time(self, backend: Backend, clock: FakeClock) -> None:
        task = a_task(clock)
        await backend.tasks.create(task)
        assert await backend.tasks.replace(replace(task, ttl_s=300.0))
        clock.pass_time(200.0)
        stored = await backend.tasks.get(task.session_id, task.id)
        assert stored is not None and stored.ttl_s == 300.0
        assert [found.id for found in await backend.tasks.of_session(task.session_id)] == [task.id]

    async def test_the_tasks_of_a_session_are_listed_and_dropped_together(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        other, session_id = a_task(clock), new_session_id()
        await backend.tasks.create(other)
        tasks = []
        for _ in range(3):
            clock.pass_time(1.0)
            tasks.append(a_task(clock, session_id=session_id))
            await backend.tasks.create(tasks[-1])
        assert await backend.tasks.of_session(session_id) == [_head(task) for task in tasks]
        await backend.tasks.drop_session(session_id)
        await backend.tasks.drop_session(session_id)
        assert await backend.tasks.of_session(session_id) == []
        assert [await backend.tasks.get(session_id, task.id) for task in tasks] == [None, None, None]
        assert await backend.tasks.of_session(other.session_id) == [_head(other)]

    async def test_a_session_has_its_tasks_page_by_page(self, backend: Backend, clock: FakeClock) -> None:
        session_id, tasks = new_session_id(), list[Task]()
        for number in range(7):
            clock.pass_time(float(number % 2))  # some are of one age
            ttl_s = 5.0 if number == 2 else 100.0
            tasks.append(a_task(clock, session_id=session_id, id=f"t{9 - number}", ttl_s=ttl_s))
            await backend.tasks.create(tasks[-1])
        tasks.sort(key=lambda task: task.place)
        first = await backend.tasks.of_session(session_id, limit=3)
        assert first == [_head(task) for task in tasks[:3]]
        expired = next(task for task in tasks if task.ttl_s == 5.0)
        clock.pass_time(5.0)
        rest = [_head(task) for task in tasks if task.place > expired.place]
        assert await backend.tasks.of_session(session_id, after=expired.place) == rest, "its place is still known"
        seen: list[Task] = []
        while page := await backend.tasks.of_session(session_id, after=seen[-1].place if seen else (0.0, ""), limit=2):
            assert len(page) <= 2
            seen += page
        assert seen == [_head(task) for task in tasks if task != expired]

    async def test_heads_are_read_by_name_and_are_small(self, backend: Backend, clock: FakeClock) -> None:
        assert await backend.tasks.heads([]) == []
        small, other = a_task(clock, error=b'{"code":1}', reason="why", is_tool_error=True), a_task(clock)
        large, short = a_task(clock, error=_LARGE), a_task(clock, ttl_s=5.0)
        for task in (small, other, large, short):
            await backend.tasks.create(task)
        clock.pass_time(5.0)
        unknown = [f"{small.session_id}/{other.id}", "unknown/task", short.name]
        heads = await backend.tasks.heads([large.name, *unknown, other.name, small.name])
        assert heads == [_head(large), _head(other), _head(small)]
        assert (heads[0].error, heads[2].error, heads[2].reason) == (b"", small.error, "why")
        assert await backend.tasks.get(large.session_id, large.id) == large
        assert await backend.tasks.of_session(large.session_id) == [_head(large)]

    async def test_operators_page_through_all_tasks_newest_first(self, backend: Backend, clock: FakeClock) -> None:
        assert await backend.tasks.page() == []
        tasks = []
        for number in range(7):
            clock.pass_time(1.0)
            # Some go before the others, and leave their names behind.
            tasks.append(a_task(clock, ttl_s=5.0 if number % 3 == 1 else 100.0))
            await backend.tasks.create(tasks[-1])
        clock.pass_time(10.0)
        expected = [task.id for task in reversed(tasks) if task.ttl_s > 5.0]
        listed = await backend.tasks.page()
        assert [task.id for task in listed] == expected
        assert (listed[0].tool, listed[0].request, listed[0].questions, listed[0].result) == ("search", b"", b"", b"")
        seen: list[Task] = []
        while page := await backend.tasks.page(before=seen[-1].name if seen else "", limit=2):
            assert len(page) <= 2
            seen += page
        assert [task.id for task in seen] == expected
        assert await backend.tasks.page(before="unknown/task") == []


def _head(task: Task) -> Task:
    error = b"" if task.error == _LARGE else task.error
    return replace(task, request=b"", questions=b"", answers=b"", result=b"", error=error)
