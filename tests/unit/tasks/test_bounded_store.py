"""The tasks of one principal take so many bytes in a store that has no bound of its own."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.tasks.bounded_store import BoundedTasks
from session_store import ANONYMOUS, Principal, StoreFull, backend_for
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.unit.tasks.test_answers import a_task

pytestmark = [pytest.mark.anyio, requirement("task.principal-bytes")]

NOW = 1_700_000_001.0
MOST = 1 << 20
ALICE, BOB = (Principal(issuer="api-key", subject=name) for name in ("alice", "bob"))


async def test_a_principal_has_so_many_bytes_until_its_tasks_expire() -> None:
    clock = FakeClock(NOW)
    backend = MemoryBackend(clock=clock)
    store = BoundedTasks(backend.tasks, backend.quotas, MOST)
    quarter = b"x" * (MOST // 4)
    tasks = [replace(a_task(request=quarter), id=f"t{number}", principal=ALICE) for number in range(5)]
    for task in tasks[:3]:
        await store.create(task)
    working = replace(tasks[3], request=b"")
    await store.create(working)
    done = replace(working, status="completed", result=quarter)
    assert await store.replace(done), "there is just room for it"
    with pytest.raises(StoreFull, match=r"gateway\.tasks\.principal_bytes"):
        await store.create(tasks[4])
    small = replace(tasks[4], request=b"y" * 1_000)
    await store.create(small)
    with pytest.raises(StoreFull):
        await store.replace(replace(small, status="completed", result=quarter))
    assert await store.replace(replace(small, status="failed", error=b"{}")), "that it is not kept is kept"
    await store.create(replace(tasks[4], id="t6", principal=BOB))
    clock.pass_time(tasks[0].ttl_s)
    renewed = BoundedTasks(backend.tasks, backend.quotas, MOST)
    later = [replace(task, id=f"later-{task.id}", created_at=clock()) for task in tasks[:4]]
    for task in later:
        await renewed.create(task)
    assert await renewed.get(later[0].session_id, later[0].id) == later[0]
    with pytest.raises(StoreFull):
        await renewed.create(replace(later[0], id="one more"))


async def test_anonymous_clients_of_one_network_leave_others_their_bytes() -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    store = BoundedTasks(backend.tasks, backend.quotas, MOST)
    first = replace(a_task(request=b"x" * MOST), principal=ANONYMOUS, origin="network")
    await store.create(first)
    with pytest.raises(StoreFull):
        await store.create(replace(first, id="t2"))
    await store.create(replace(first, id="t3", origin="another"))
    found = await BoundedTasks(backend.tasks, backend.quotas, MOST).get(first.session_id, first.id)
    assert found == first, "its next owner counts it for the same network"


async def test_an_outcome_that_is_not_kept_takes_nothing() -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    store = BoundedTasks(backend.tasks, backend.quotas, MOST)
    half = b"x" * (MOST // 2)
    first, second, third = (replace(a_task(), id=f"t{number}", principal=ALICE) for number in range(3))
    for task in (first, second, third):
        await store.create(task)
    assert await store.replace(replace(first, status="completed", result=half))
    with pytest.raises(StoreFull):
        await store.replace(replace(second, status="completed", result=half + half))
    assert await store.replace(replace(third, status="completed", result=half)), "what did not fit has no place"


async def test_what_has_its_place_is_stored_again_when_all_places_are_taken() -> None:
    backend = MemoryBackend(clock=FakeClock(NOW))
    store = BoundedTasks(backend.tasks, backend.quotas, MOST)
    first, second = (replace(a_task(), id=f"t{number}", principal=ALICE) for number in range(2))
    whole = b"x" * MOST
    await store.create(replace(first, request=whole))
    with pytest.raises(StoreFull):
        await store.create(replace(second, request=whole))
    assert await store.replace(replace(first, request=whole, message="half")), "its progress is written all the same"


@pytest.mark.parametrize("anonymous", [False, True])
async def test_tasks_that_end_at_once_do_not_pass_the_bound_together(tmp_path: Path, anonymous: bool) -> None:
    backend = backend_for(f"sqlite:///{tmp_path}/tasks.db")
    await backend.open()
    try:
        store = BoundedTasks(backend.tasks, backend.quotas, MOST)
        now = FakeClock(NOW)()
        tasks = [replace(a_task(), id=f"t{n}", ttl_s=1e9, created_at=now) for n in range(8)]
        if not anonymous:
            tasks = [replace(task, principal=ALICE) for task in tasks]
        for task in tasks:
            await store.create(task)
        outcomes = [replace(task, status="completed", result=b"x" * (MOST // 4)) for task in tasks]
        ended = await asyncio.gather(*(store.replace(task) for task in outcomes), return_exceptions=True)
        assert ended.count(True) == 4 and all(found is True or isinstance(found, StoreFull) for found in ended)
        kept = [await store.get(task.session_id, task.id) for task in tasks]
        assert 0 < sum(len(task.result) for task in kept if task is not None) <= MOST
    finally:
        await backend.close()
