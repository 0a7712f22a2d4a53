"""A store in memory has a bound in bytes: what does not fit is not kept, and its task says so."""

import msgspec
import pytest
from msgspec.structs import replace

from gateway.tasks.record import TaskRecord
from session_store import ANONYMOUS, StoreFull, Task
from session_store.embedded.tasks import MemoryTasks
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.tasks.test_answers import a_task

pytestmark = pytest.mark.anyio

CLOCK = FakeClock(1_700_000_001.0)
TASK = a_task()


def task(name: str, **fields: object) -> Task:
    return replace(TASK, id=name, **fields)


@requirement("task.bytes")
async def test_an_outcome_that_does_not_fit_fails_its_task_and_says_so() -> None:
    store = MemoryTasks(CLOCK, max_bytes=100_000)
    await store.create(task("one"))
    record = TaskRecord(task("one"), store, changed=lambda _: None, no_room=lambda: None, clock=CLOCK)
    record.change(status="completed", result=b"[" + b"1," * 100_000 + b"1]")
    assert await record.written() and record.task.status == "failed"
    found = await store.get(task("one").session_id, "one")
    assert found is not None and (found.status, found.result) == ("failed", b"")
    assert "store of tasks is full" in msgspec.json.decode(found.error)["message"]


@requirement("task.bytes")
async def test_anonymous_clients_leave_half_of_the_store_to_named_ones_and_room_comes_back() -> None:
    clock = FakeClock(CLOCK())
    store = MemoryTasks(clock, 100, max_bytes=100_000)
    await store.create(task("a", principal=ANONYMOUS, result=bytes(40_000)))
    with pytest.raises(StoreFull):
        await store.create(task("b", principal=ANONYMOUS, result=bytes(10_000)))
    await store.create(task("c", result=bytes(40_000)))
    with pytest.raises(StoreFull):
        await store.replace(task("c", result=bytes(70_000)))
    found = await store.get(task("c").session_id, "c")
    assert found is not None and len(found.result) == 40_000, "nothing has changed"
    await store.drop_session(found.session_id)
    await store.create(task("d", result=bytes(90_000)))
    clock.pass_time(TASK.ttl_s)
    await store.create(task("e", created_at=clock(), result=bytes(90_000)))


@requirement("task.bytes")
async def test_anonymous_clients_of_one_network_leave_room_to_others() -> None:
    store = MemoryTasks(CLOCK, 8, max_bytes=100_000)
    of_one, of_another = ({"principal": ANONYMOUS, "created_at": CLOCK(), "origin": each} for each in ("one", "two"))
    first = task("a", **of_one, result=bytes(20_000))
    await store.create(first)
    with pytest.raises(StoreFull):
        await store.create(task("b", **of_one, result=bytes(5_000)))
    assert await store.replace(replace(first, status="completed", result=b"small"))
    await store.create(task("c", **of_one))
    with pytest.raises(StoreFull):
        await store.create(task("d", **of_one))
    await store.create(task("e", **of_another, result=bytes(20_000)))
