"""How many tasks a session and a principal may have, and the names of the tasks that replicas run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.limits import TaskSettings
from gateway.tasks.gateway_tasks.quotas import LEFT, BoundedTasks, RunningNames, TaskQuotas
from session_store import ANONYMOUS, Backend, Principal, StoreFull, Task
from session_store.memory import MemoryBackend
from session_store.sqlite import SqliteBackend
from session_store.testing import ALICE, BOB, FakeClock
from tests.requirements import requirement
from tests.unit.store.parts import opened
from tests.unit.tasks.parts import a_task

NOW = 1_700_000_001.0
MOST = 1 << 20


def quotas_in(backend: Backend, **settings: Any) -> TaskQuotas:
    return TaskQuotas(TaskSettings(**settings), backend.quotas, backend.tasks)


def bounded(backend: Backend | None = None) -> BoundedTasks:
    """A store of which a principal may have `MOST` bytes."""
    backend = backend or MemoryBackend(clock=FakeClock(NOW))
    return BoundedTasks(backend.tasks, backend.quotas, most_bytes=MOST)


def tasks(many: int, **fields: Any) -> list[Task]:
    """Tasks of one session."""
    return [a_task(id=f"t{number}", session_id="s", **fields) for number in range(many)]


@requirement("task.make")
async def test_a_session_and_a_principal_have_so_many_tasks_until_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    monkeypatch.setattr("gateway.tasks.gateway_tasks.quotas.MAX_PER_PRINCIPAL", 3)
    monkeypatch.setattr("gateway.tasks.gateway_tasks.quotas.MAX_PER_SESSION", 2)
    quotas = quotas_in(backend)
    one, two, three = tasks(3)
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
async def test_anonymous_clients_are_counted_by_their_network(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    monkeypatch.setattr("gateway.tasks.gateway_tasks.quotas.MAX_PER_PRINCIPAL", 1)
    quotas = quotas_in(backend)
    one, two, other = tasks(3, principal=ANONYMOUS, origin="network")
    other = replace(other, origin="another")
    for task in (one, two, other):
        await backend.tasks.create(task)
    assert [await quotas.hold(task) for task in (one, two, other)] == [True, False, True]


@requirement("task.durable")
async def test_the_names_of_a_replica_are_found_by_others() -> None:
    quotas = MemoryBackend().quotas
    mine, others = RunningNames(quotas, "r1"), RunningNames(quotas, "r2")
    assert await others.replicas() == []
    await mine.add("s/t1")
    await mine.add("s/t2")
    assert await others.replicas() == ["r1"] and await others.of("r1") == ["s/t1", "s/t2"]
    await others.remove("s/t1", "r1")
    await mine.leave("s/t2")
    assert await others.of("r1") == [] and await others.of(LEFT) == ["s/t2"]
    await others.forget("r1")
    assert await others.replicas() == [LEFT]
    await others.forget(LEFT)
    assert await others.replicas() == [LEFT], "it has a task"


@requirement("task.make")
async def test_a_task_counts_as_long_as_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tasks.gateway_tasks.quotas.MAX_PER_SESSION", 2)
    month, clock = 30 * 86_400.0, FakeClock(1_700_000_000.0)
    async with opened(SqliteBackend(tmp_path / "tasks.db", clock=clock)) as sqlite:
        for backend in (MemoryBackend(clock=clock), sqlite):
            quotas = quotas_in(backend, ttl_s=month)
            for task in tasks(2, created_at=clock(), ttl_s=month):
                assert await quotas.hold(task)
                await backend.tasks.create(task)
            clock.pass_time(month - 10)
            assert not await quotas.hold(replace(task, id="t9")), "both are stored still"
            clock.pass_time(20)
            assert await quotas_in(backend, ttl_s=month).hold(replace(task, id="t9"))


@requirement("task.durable")
async def test_the_names_of_a_task_that_works_for_long_are_kept() -> None:
    clock = FakeClock(1_700_000_000.0)
    backend = MemoryBackend(clock=clock)
    names, quotas = RunningNames(backend.quotas, "r1"), quotas_in(backend)
    (task,) = tasks(1)
    assert await quotas.hold(task)
    await names.add(task.name)
    for _ in range(4):
        clock.pass_time(2 * 86_400.0)
        await names.renew(task)
    assert await names.of("r1") == await quotas.of_principal(ALICE) == [task.name]
    clock.pass_time(4 * 86_400.0)
    assert await names.of("r1") == await quotas.of_principal(ALICE) == []


@requirement("task.principal-bytes")
async def test_a_principal_has_so_many_bytes_until_its_tasks_expire() -> None:
    clock = FakeClock(NOW)
    backend = MemoryBackend(clock=clock)
    store, quarter = bounded(backend), b"x" * (MOST // 4)
    *first, last, more = tasks(5, request=quarter)
    for task in first:
        await store.create(task)
    working = replace(last, request=b"")
    await store.create(working)
    done = replace(working, status="completed", result=quarter)
    assert await store.replace(done), "there is just room for it"
    with pytest.raises(StoreFull, match="1048576 bytes, which is the most"):
        await store.create(more)
    small = replace(more, request=b"y" * 1_000)
    await store.create(small)
    with pytest.raises(StoreFull):
        await store.replace(replace(small, status="completed", result=quarter))
    assert await store.replace(replace(small, status="failed", error=b"{}")), "that it is not kept is kept"
    await store.create(replace(more, id="t6", principal=BOB))
    clock.pass_time(more.ttl_s)
    renewed = bounded(backend)
    later = [replace(task, id=f"later-{task.id}", created_at=clock()) for task in (*first, last)]
    for task in later:
        await renewed.create(task)
    assert await renewed.get("s", later[0].id) == later[0]
    with pytest.raises(StoreFull):
        await renewed.create(replace(later[0], id="one more"))


@requirement("task.principal-bytes")
async def test_who_has_all_its_bytes_gets_no_more_keeps_its_places_and_leaves_others_theirs() -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    store = bounded(backend)
    first, second, third = tasks(3, request=b"x" * MOST, principal=ANONYMOUS, origin="network")
    await store.create(first)
    with pytest.raises(StoreFull):
        await store.create(second)
    await store.create(replace(third, origin="another"))
    found = await bounded(backend).get("s", first.id)
    assert found == first, "its next owner counts it for the same network"
    assert await store.replace(replace(first, message="half")), "its progress is written all the same"


@requirement("task.principal-bytes")
async def test_an_outcome_that_is_not_kept_takes_nothing() -> None:
    store, half = bounded(), b"x" * (MOST // 2)
    first, second, third = tasks(3)
    for task in (first, second, third):
        await store.create(task)
    assert await store.replace(replace(first, status="completed", result=half))
    with pytest.raises(StoreFull):
        await store.replace(replace(second, status="completed", result=half + half))
    assert await store.replace(replace(third, status="completed", result=half)), "what did not fit has no place"


@requirement("task.principal-bytes")
@pytest.mark.parametrize("principal", [ALICE, ANONYMOUS], ids=str)
async def test_tasks_that_end_at_once_do_not_pass_the_bound_together(tmp_path: Path, principal: Principal) -> None:
    async with opened(SqliteBackend(tmp_path / "tasks.db")) as backend:
        store, made = bounded(backend), tasks(8, principal=principal, ttl_s=1e9)
        for task in made:
            await store.create(task)
        outcomes = [replace(task, status="completed", result=b"x" * (MOST // 4)) for task in made]
        ended = await asyncio.gather(*map(store.replace, outcomes), return_exceptions=True)
        assert ended.count(True) == 4 and all(found is True or isinstance(found, StoreFull) for found in ended)
        kept = [await store.get("s", task.id) for task in made]
        assert 0 < sum(len(task.result) for task in kept if task is not None) <= MOST
