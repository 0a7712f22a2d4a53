"""Expiry by the real clock, two sweepers at once, and real Redis keys that go by themselves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic, time

import pytest

from session_store import Backend, MemoryBackend, Session
from session_store.redis import RedisBackend
from session_store.sqlite import SqliteBackend
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support.redis_server import RunningRedis

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def backends(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RunningRedis
) -> AsyncIterator[list[Backend]]:
    """Two clients of one store, on the real clock."""
    made: list[Backend]
    if request.param == "memory":
        made = [MemoryBackend()] * 2
    elif request.param == "sqlite":
        path = tmp_path / "sessions.db"
        made = [SqliteBackend(path), SqliteBackend(path, exclusive=False)]
    else:
        redis_server.client().flushall()
        made = [RedisBackend(redis_server.url) for _ in range(2)]
    for backend in made:
        await backend.open()
    yield made
    for backend in made:
        await backend.close()


def now_session(**fields: float) -> Session:
    return a_session(FakeClock(time()), **fields)


@requirement("life.ttl")
async def test_use_slides_the_deadline_and_it_is_kept_to(backends: list[Backend]) -> None:
    one, other = backends
    session = await one.sessions.create(now_session(idle_ttl_s=0.4))
    for client in (one, other, one):
        await asyncio.sleep(0.2)
        assert await client.sessions.resume(session.id, ALICE) is not None
    last_use = monotonic()
    while await other.sessions.peek(session.id) is not None:
        assert monotonic() - last_use < 2, "it does not go"
        await asyncio.sleep(0.005)
    assert 0.35 < monotonic() - last_use < 1.0


@requirement("life.ttl", "life.events")
async def test_two_sweepers_find_each_expired_session_once(backends: list[Backend]) -> None:
    sessions = [await backends[n % 2].sessions.create(now_session(idle_ttl_s=0.2 + n / 100)) for n in range(30)]
    found: list[str] = []
    deadline = monotonic() + 10
    while len(found) < len(sessions) and monotonic() < deadline:
        parts = await asyncio.gather(*(b.sessions.sweep() for b in backends))
        found += [gone.session_id for part in parts for gone in part]
        await asyncio.sleep(0.01)
    assert sorted(found) == sorted(s.id for s in sessions)
    assert [await b.sessions.sweep() for b in backends] == [[], []]


@requirement("rep.redis")
async def test_nothing_of_an_expired_session_stays_in_redis_even_if_nobody_sweeps(redis_server: RunningRedis) -> None:
    client = redis_server.client()
    client.flushall()
    backend = RedisBackend(redis_server.url)
    session = await backend.sessions.create(now_session(idle_ttl_s=0.3), alias="alias")
    await backend.state.set(session.id, "k", b"1")
    await backend.events.append(session.id, "one", b"frame")
    deadline = monotonic() + 5
    while [name for name in client.keys("*") if session.id.encode() in name]:
        assert monotonic() < deadline, client.keys("*")
        await asyncio.sleep(0.05)
    assert await backend.sessions.resume_alias("alias") is None
    assert [g.session_id for g in await backend.sessions.sweep()] == [session.id], "it is told nevertheless"
    await backend.close()
