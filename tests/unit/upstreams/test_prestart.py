"""Which session gets a prestarted process, and what becomes of the others."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.upstreams import prestart
from gateway.upstreams.prestart import PrestartedProcesses, PrestartPool
from session_store import Session
from session_store.testing import BOB, FakeClock, a_session
from transports.upstream_port import UpstreamUnavailable

pytestmark = pytest.mark.anyio

CLOCK = FakeClock()


class Process:
    """A process that was started for a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_good = True
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


class Pooled:
    """A pool for one server, which is this."""

    name = "demo"

    def __init__(self, prestarted: int = 1) -> None:
        self.prestarted = prestarted
        self.started: list[Process] = []
        self.is_busy = False
        self.given = PrestartedProcesses()
        self.pool = PrestartPool(self.given, lambda *_: [self])

    async def prestart(self, session: Session) -> Any:
        if self.is_busy:
            raise UpstreamUnavailable("busy")
        self.started.append(Process(session))
        return self.started[-1]

    async def open(self, **fields: Any) -> Session:
        """Open a session; what is made for the next one is ready afterwards."""
        with self.pool.beginning(a_session(CLOCK, **fields)) as session:
            self.pool.opened(session)
        await self.settled()
        return session

    async def settled(self) -> None:
        """Until what is being made or closed is made or closed."""
        await self.pool._tasks.settled()
        await self.given._tasks.settled()


@pytest.fixture
async def pooled() -> AsyncIterator[Pooled]:
    """With a process for the next session."""
    found = Pooled()
    await found.open()
    yield found
    await found.pool.close()


async def test_the_next_session_of_the_same_environment_gets_the_process_once(pooled: Pooled) -> None:
    [process] = pooled.started
    session = await pooled.open()
    assert session.id == process.session.id, "the process has its session's id"
    assert pooled.given.take(session, "other") is None
    taken: Any = pooled.given.take(session, "demo")
    assert taken is process and pooled.given.take(session, "demo") is None
    assert len(pooled.started) == 2, "and one is made for the next"
    await pooled.pool.close()
    assert not process.is_closed and pooled.started[1].is_closed


@pytest.mark.parametrize(
    "other",
    [
        {"principal": BOB},
        {"endpoint": "/servers/demo/mcp"},
        {"context": replace(a_session(CLOCK).context, workspace="another")},
        {"client": replace(a_session(CLOCK).client, name="another")},
    ],
)
async def test_a_session_that_differs_in_anything_a_process_learns_gets_none(
    pooled: Pooled, other: dict[str, Any]
) -> None:
    session = await pooled.open(**other)
    assert session.id not in [process.session.id for process in pooled.started]


async def test_a_session_that_was_not_opened_leaves_no_process(pooled: Pooled) -> None:
    with pytest.raises(ValueError, match="refused"), pooled.pool.beginning(a_session(CLOCK)) as session:
        raise ValueError("refused")
    await pooled.settled()
    assert pooled.started[0].is_closed and pooled.given.take(session, "demo") is None


@pytest.mark.parametrize("has_exited", [False, True])
async def test_a_process_that_has_exited_or_was_not_used_by_its_session_ends(pooled: Pooled, has_exited: bool) -> None:
    pooled.started[0].is_good = not has_exited
    session = await pooled.open()
    if has_exited:
        assert pooled.given.take(session, "demo") is None
    else:
        pooled.given.forget(session.id)
        await pooled.settled()
    assert pooled.started[0].is_closed


async def test_there_are_pools_for_so_many_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "MAX_ENVIRONMENTS", 2)
    pooled = Pooled()
    context = a_session(CLOCK).context
    for workspace in ("a", "b", "a", "c"):
        await pooled.open(context=replace(context, workspace=workspace))
    closed = [process.session.context.workspace for process in pooled.started if process.is_closed]
    assert closed == ["b"], "the one that was not used for longest"
    await pooled.pool.close()
    assert all(process.is_closed for process in pooled.started)


async def test_a_pool_that_is_not_used_is_closed(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    pooled.pool.sweep()
    await pooled.settled()
    assert not pooled.started[0].is_closed
    monkeypatch.setattr(prestart, "UNUSED_S", -1.0)
    pooled.pool.sweep()
    await pooled.settled()
    assert pooled.started[0].is_closed


async def test_a_server_that_cannot_start_leaves_the_pool_empty() -> None:
    pooled = Pooled(prestarted=2)
    pooled.is_busy = True
    await pooled.open()
    assert pooled.started == []
    pooled.is_busy = False
    await pooled.open()
    assert len(pooled.started) == 2
