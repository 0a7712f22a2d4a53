"""What one process remembers of an app's sessions, and when it restarts their idle time."""

import asyncio

import pytest

from gateway.config.sessions import SessionSettings
from gateway.integrations import app_sessions
from gateway.integrations.app_sessions import AppSessions
from session_store import ANONYMOUS, MemoryBackend, StoreError
from session_store.testing import ALICE, BOB, FakeClock
from tests.requirements import requirement

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(clock: FakeClock) -> MemoryBackend:
    return MemoryBackend(clock=clock)


@pytest.fixture
def sessions(backend: MemoryBackend, clock: FakeClock) -> AppSessions:
    return AppSessions(backend, SessionSettings(idle_ttl_s=100, max_age_s=1_000), clock=clock, timer=clock)


@requirement("app.ttl", "life.ttl")
async def test_use_restarts_the_idle_time_once_in_a_while(
    sessions: AppSessions, backend: MemoryBackend, clock: FakeClock
) -> None:
    session = sessions.new(ALICE, "192.0.2.1")
    await sessions.open(session)
    used = []
    for _ in range(40):
        clock.pass_time(10 / 4)
        assert sessions.is_known(session.id, ALICE)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = await backend.sessions.peek(session.id)
        assert found is not None, "used all the time"
        used.append(found.used_at)
    assert len(set(used)) == 21, "every 5 s: five of a hundred"
    clock.pass_time(94)
    assert await backend.sessions.peek(session.id) is not None
    clock.pass_time(6)
    assert await sessions.resume(session.id, ALICE) is None and not sessions.is_known(session.id, ALICE)


@requirement("app.ttl")
async def test_a_session_has_an_age_that_use_does_not_extend(sessions: AppSessions, clock: FakeClock) -> None:
    session = sessions.new(ANONYMOUS, "192.0.2.1")
    await sessions.open(session)
    for _ in range(10):
        assert await sessions.resume(session.id, ANONYMOUS) is not None
        clock.pass_time(99.9)
    clock.pass_time(1)
    assert await sessions.resume(session.id, ANONYMOUS) is None


@requirement("app.principal")
async def test_what_is_remembered_is_whose_a_session_is(sessions: AppSessions) -> None:
    session = sessions.new(ALICE, "")
    await sessions.open(session)
    assert sessions.is_known(session.id, ALICE) and not sessions.is_known(session.id, BOB)
    assert await sessions.resume(session.id, BOB) is None
    await sessions.end(session.id)
    assert not sessions.is_known(session.id, ALICE)


@requirement("app.middleware", "wall.memory")
async def test_what_is_remembered_is_bounded(sessions: AppSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_sessions, "_KNOWN_HELD", 10)
    opened = [sessions.new(ALICE, "") for _ in range(12)]
    for session in opened:
        await sessions.open(session)
    assert [sessions.is_known(session.id, ALICE) for session in opened] == [False] * 2 + [True] * 10


@requirement("app.middleware")
async def test_expired_sessions_leave_the_store_when_others_open(
    sessions: AppSessions, backend: MemoryBackend, clock: FakeClock
) -> None:
    await sessions.open(sessions.new(ALICE, ""))
    clock.pass_time(101)
    await sessions.open(sessions.new(ALICE, ""))
    await sessions.close()
    assert len(backend.sessions.records) == 1


@requirement("app.outage")
async def test_a_store_that_cannot_be_opened_is_tried_again(clock: FakeClock) -> None:
    class Late(MemoryBackend):
        tries = 0

        async def open(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise StoreError("not yet")

    backend = Late(clock=clock)
    sessions = AppSessions(backend, SessionSettings(), clock=clock, timer=clock)
    with pytest.raises(StoreError, match="not yet"):
        await sessions.open_store()
    await sessions.open(sessions.new(ALICE, ""))
    await sessions.open_store()
    assert backend.tries == 2
