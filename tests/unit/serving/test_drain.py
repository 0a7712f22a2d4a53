"""`gateway.serving.drain`: it is not ready at once, and its sessions are released."""

from typing import Any

import pytest

from gateway.cluster.ownership import Cluster
from gateway.serving import drain as module
from gateway.serving.drain import Drain
from gateway.serving.readiness import Readiness
from gateway.serving.state import ServingState
from session_store import MemoryBackend, StoreUnavailable

pytestmark = pytest.mark.anyio


class FakeSessions:
    """Sessions whose calls take some rounds to be answered."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    async def release_idle(self) -> bool:
        self.rounds -= 1
        return self.rounds <= 0


class FakeLive:
    """A session without streams."""

    def __init__(self) -> None:
        self.drained = 0
        self.exchanges: set[Any] = set()

    def drain(self) -> None:
        self.drained += 1


def draining(cluster: Cluster | None, sessions: FakeSessions, *lives: FakeLive) -> Drain:
    state = ServingState(cluster)
    state.start()

    async def try_write() -> None:
        pass

    live: Any = lives
    lifecycle: Any = sessions
    return Drain(
        state=state,
        readiness=Readiness(state.may_serve, try_write),
        live=live,
        lifecycle=lifecycle,
        cluster=cluster,
    )


async def test_a_gateway_alone_only_ends_its_streams() -> None:
    live, sessions = FakeLive(), FakeSessions(rounds=3)
    drain = draining(None, sessions, live)
    assert await drain.is_ready()
    await drain.drain()
    assert drain.is_draining and not await drain.is_ready() and live.drained == 1
    assert sessions.rounds == 3, "nobody could take them"
    drain.admit()
    assert not drain.is_draining and await drain.is_ready()


@pytest.mark.parametrize("answers", [True, False])
async def test_sessions_are_released_as_their_calls_end(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.0)
    backend = MemoryBackend()
    cluster = Cluster(backend.directory, backend.sessions, taken_over=lambda _: None)

    async def another() -> None:
        if not answers:
            raise StoreUnavailable("away")

    monkeypatch.setattr(cluster, "another", another)
    sessions = FakeSessions(rounds=3)
    await draining(cluster, sessions).drain()
    assert sessions.rounds == 0
