"""A store in memory has a bound in bytes: what does not fit is not kept, and its task says so."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gateway.tasks.gateway_tasks.task_record_writer import TaskRecordWriter
from session_store import ANONYMOUS, StoreFull, Task
from session_store.embedded.tasks import MemoryTasks
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.tasks.parts import a_task

pytestmark = requirement("task.bytes")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_001.0)


def task(name: str, size: int = 0, **fields: Any) -> Task:
    """A task of the session `s` with a result of that size."""
    return a_task(id=name, session_id="s", result=bytes(size), **fields)


async def test_an_outcome_that_does_not_fit_fails_its_task_and_says_so(clock: FakeClock) -> None:
    store, one = MemoryTasks(clock, max_bytes=100_000), task("one")
    await store.create(one)
    record = TaskRecordWriter(one, store, changed=lambda _: None, no_room=lambda: None, clock=clock)
    record.change(status="completed", result=b"[" + b"1," * 100_000 + b"1]")
    assert await record.written() and record.task.status == "failed"
    found = await store.get("s", "one")
    assert found is not None and (found.status, found.result) == ("failed", b"")
    assert "store of tasks is full" in msgspec.json.decode(found.error)["message"]


async def test_anonymous_clients_leave_half_of_the_store_to_named_ones_and_room_comes_back(clock: FakeClock) -> None:
    store, named = MemoryTasks(clock, 100, max_bytes=100_000), task("c", 40_000)
    await store.create(task("a", 40_000, principal=ANONYMOUS))
    with pytest.raises(StoreFull):
        await store.create(task("b", 10_000, principal=ANONYMOUS))
    await store.create(named)
    with pytest.raises(StoreFull):
        await store.replace(task("c", 70_000))
    assert await store.get("s", "c") == named, "nothing has changed"
    await store.drop_session("s")
    await store.create(task("d", 90_000))
    clock.pass_time(named.ttl_s)
    await store.create(task("e", 90_000, created_at=clock()))


async def test_anonymous_clients_of_one_network_leave_room_to_others(clock: FakeClock) -> None:
    store = MemoryTasks(clock, 8, max_bytes=100_000)
    first = task("a", 20_000, principal=ANONYMOUS, origin="one")
    await store.create(first)
    with pytest.raises(StoreFull):
        await store.create(replace(first, id="b", result=bytes(5_000)))
    assert await store.replace(replace(first, status="completed", result=b"small"))
    await store.create(replace(first, id="c", result=b""))
    with pytest.raises(StoreFull):
        await store.create(replace(first, id="d", result=b""))
    await store.create(replace(first, id="e", origin="two"))
