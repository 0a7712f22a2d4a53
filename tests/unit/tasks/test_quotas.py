"""How many tasks a session and a principal may have, and the names of the tasks that replicas run."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config.tasks import TaskSettings
from gateway.tasks.quotas import LEFT, RunningNames, TaskQuotas
from session_store import ANONYMOUS, Principal
from session_store.memory import MemoryBackend
from session_store.sqlite import SqliteBackend
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.tasks.test_answers import a_task

pytestmark = pytest.mark.anyio

ALICE, BOB = (Principal(issuer="api-key", subject=name) for name in ("alice", "bob"))
NOW = 1_700_000_001.0


@requirement("task.make")
async def test_a_session_and_a_principal_have_so_many_tasks_until_they_expire() -> None:
    clock = FakeClock(NOW)
    backend = MemoryBackend(clock=clock)
    quotas = TaskQuotas(TaskSettings(max_per_session=2, max_per_principal=3), backend.quotas, backend.tasks)
    first = replace(a_task(), principal=ALICE)
    one, two, three = (replace(first, id=f"t{number}") for number in range(3))
    elsewhere = [replace(task, session_id="other") for task in (one, two)]
    for task in (one, two, *elsewhere):
        await backend.tasks.create(task)
    assert await quotas.hold(one) and await quotas.hold(two)
    assert not await quotas.hold(three), "the session has two"
    assert await quotas.hold(elsewhere[0])
    assert not await quotas.hold(elsewhere[1]), "alice has three"
    assert await quotas.hold(replace(elsewhere[1], principal=BOB))
    await quotas.give_back(two)
    assert await quotas.hold(replace(two, id="t9")), "one was given back"


@requirement("task.make")
async def test_anonymous_clients_are_counted_by_their_network() -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    quotas = TaskQuotas(TaskSettings(max_per_principal=1), backend.quotas, backend.tasks)
    one, two, other = (
        replace(a_task(), id=f"t{number}", principal=ANONYMOUS, origin=origin)
        for number, origin in enumerate(("network", "network", "another"))
    )
    for task in (one, two, other):
        await backend.tasks.create(task)
    assert await quotas.hold(one) and not await quotas.hold(two)
    assert await quotas.hold(other)


@requirement("task.make")
async def test_a_task_that_is_gone_leaves_its_place() -> None:
    clock = FakeClock(NOW)
    backend = MemoryBackend(clock=clock)
    task = a_task()
    await backend.tasks.create(task)
    assert await TaskQuotas(TaskSettings(max_per_session=1), backend.quotas, backend.tasks).hold(task)
    clock.pass_time(task.ttl_s)
    quotas = TaskQuotas(TaskSettings(max_per_session=1), backend.quotas, backend.tasks)
    assert await quotas.hold(replace(task, id="t2", created_at=clock()))


@requirement("task.durable")
async def test_the_names_of_a_replica_are_found_by_others() -> None:
    quotas = MemoryBackend().quotas
    mine, others = RunningNames(quotas, "r1"), RunningNames(quotas, "r2")
    assert await others.replicas() == []
    await mine.add("s/t1")
    await mine.add("s/t2")
    assert await others.replicas() == ["r1"] and await others.of("r1") == ["s/t1", "s/t2"]
    await others.remove("s/t1", "r1")
    await mine.add_left("s/t2")
    await mine.remove("s/t2")
    assert await others.of("r1") == [] and await others.of(LEFT) == ["s/t2"]
    await others.forget("r1")
    assert await others.replicas() == [LEFT]
    await others.forget(LEFT)
    assert await others.replicas() == [LEFT], "it has a task"


@requirement("task.make")
async def test_a_task_counts_as_long_as_it_is_kept(tmp_path: Path) -> None:
    month, clock = 30 * 86_400.0, FakeClock(1_700_000_000.0)
    sqlite = SqliteBackend(tmp_path / "tasks.db", clock=clock)
    await sqlite.open()
    try:
        for backend in (MemoryBackend(clock=clock), sqlite):
            quotas = TaskQuotas(TaskSettings(ttl_s=month, max_per_principal=2), backend.quotas, backend.tasks)
            for number in range(2):
                task = replace(a_task(), id=f"t{number}", principal=ALICE, created_at=clock(), ttl_s=month)
                assert await quotas.hold(task)
                await backend.tasks.create(task)
            clock.pass_time(month - 10)
            assert not await quotas.hold(replace(task, id="t9")), "both are stored still"
            clock.pass_time(20)
            later = TaskQuotas(TaskSettings(ttl_s=month, max_per_principal=2), backend.quotas, backend.tasks)
            assert await later.hold(replace(task, id="t9"))
    finally:
        await sqlite.close()


@requirement("task.durable")
async def test_the_names_of_a_task_that_works_for_long_are_kept() -> None:
    clock = FakeClock(1_700_000_000.0)
    backend = MemoryBackend(clock=clock)
    names, quotas = RunningNames(backend.quotas, "r1"), TaskQuotas(TaskSettings(), backend.quotas, backend.tasks)
    task = replace(a_task(), principal=ALICE)
    assert await quotas.hold(task)
    await names.add(task.name)
    for _ in range(4):
        clock.pass_time(2 * 86_400.0)
        await names.renew(task)
    assert await names.of("r1") == await quotas.of_principal(ALICE) == [task.name]
    clock.pass_time(4 * 86_400.0)
    assert await names.of("r1") == await quotas.of_principal(ALICE) == []
