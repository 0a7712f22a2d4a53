"""The memory backend keeps its bound."""

import pytest

from session_store import MemorySessionStore, StoreFull
from session_store.memory import MAX_SESSIONS
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement


@requirement("life.bounded")
@pytest.mark.anyio
async def test_a_full_store_evicts_the_least_recently_used_idle_session() -> None:
    clock, in_use = FakeClock(), set[str]()
    store = MemorySessionStore(clock=clock, max_sessions=3)
    store.in_use = in_use.__contains__
    first, second, third = [await store.create(a_session(clock)) for _ in range(3)]
    in_use.add(second.id)
    await store.resume(first.id, ALICE)
    fourth = await store.create(a_session(clock))
    assert await store.peek(third.id) is None, "the least recently used one that is idle goes"
    assert [g.session_id for g in await store.sweep()] == [third.id]
    in_use |= {first.id, fourth.id}
    with pytest.raises(StoreFull):
        await store.create(a_session(clock))
    assert await store.peek(second.id) is not None


@requirement("life.bounded")
@pytest.mark.anyio
async def test_a_thousand_sessions_fit_by_default_and_no_more() -> None:
    clock = FakeClock()
    store = MemorySessionStore(clock=clock)
    for _ in range(MAX_SESSIONS + 10):
        await store.create(a_session(clock))
    assert MAX_SESSIONS == 1_000
    assert len(await store.page(limit=5_000)) == 1_000
    assert len(await store.sweep()) == 10
