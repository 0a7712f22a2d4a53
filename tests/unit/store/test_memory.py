"""The memory backend keeps its bound."""

import pytest

from session_store import ANONYMOUS, Principal, Session, StoreFull
from session_store.memory import MemorySessionStore
from session_store.session import origin_of
from session_store.testing import ALICE, BOB, FakeClock, a_session
from tests.requirements import requirement


@requirement("life.bounded")
async def test_a_full_store_evicts_the_least_recently_used_idle_session() -> None:
    clock, in_use = FakeClock(), set[str]()
    store = MemorySessionStore(clock=clock, max_sessions=3)
    store.protect(in_use.__contains__)
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
async def test_a_thousand_sessions_fit_by_default_and_no_more() -> None:
    clock = FakeClock()
    store = MemorySessionStore(clock=clock)
    for _ in range(1_010):
        await store.create(a_session(clock))
    assert len(await store.page(limit=5_000)) == 1_000
    assert len(await store.sweep()) == 10


def session(number: int, *, whose: Principal = ANONYMOUS, origin: str = "", confirmed: bool = False) -> Session:
    """A session that was last used at second `number` and does not expire here."""
    whom = {"principal": whose, "confirmed": confirmed or whose != ANONYMOUS, "origin": origin_of(origin)}
    never = {"idle_ttl_s": 1e6, "max_age_s": 1e6, "unconfirmed_ttl_s": 1e6}
    return a_session(FakeClock(float(number)), id=f"session-{number:04}", **whom, **never)


@requirement("wall.memory", "wall.bystander")
async def test_a_flood_of_strangers_ends_no_session_of_a_named_principal() -> None:
    store = MemorySessionStore(clock=lambda: 0.0, max_sessions=10)
    for number in range(4):
        await store.create(session(number, whose=ALICE))
    await store.create(session(10, origin="192.0.2.1", confirmed=True))
    for number in range(100, 200):
        await store.create(session(number, origin="192.0.2.9"))
    kept = {s.id for s in await store.page()}
    assert {f"session-{number:04}" for number in (0, 1, 2, 3, 10, 199)} <= kept and len(kept) == 10
    # A named principal takes the place of strangers first, and then of whoever has most.
    for number in range(300, 306):
        await store.create(session(number, whose=BOB))
    assert len(await store.page()) == 10 and not any(s.principal.is_anonymous for s in await store.page())
    for number in range(400, 403):
        await store.create(session(number, whose=ALICE))
    whose = [s.principal.subject for s in await store.page()]
    assert (whose.count("alice"), whose.count("bob")) == (5, 5)
    with pytest.raises(StoreFull):
        await store.create(session(500, origin="192.0.2.9"))
