"""`gateway.serving.drain` and its state: it is not ready at once, and its sessions are released."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.exchange import Exchange
from gateway.cluster.ownership import Cluster
from gateway.config.policy import PolicySettings
from gateway.errors import STORE_UNAVAILABLE
from gateway.policy.rate_limits import RateLimits
from gateway.serving import drain as module
from gateway.serving.drain import Drain
from gateway.serving.readiness import Readiness, ServingState
from gateway.tasks.made.results import WaitingCalls
from session_store import MemoryBackend, StoreUnavailable
from tests.requirements import requirement
from tests.unit.tasks.parts import a_task
from transports.reply_queue import ReplyQueue

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


def a_running(status: str = "working") -> Any:
    return SimpleNamespace(task=a_task(status=status))


def a_cluster() -> Cluster:
    backend = MemoryBackend()
    return Cluster(backend.directory, backend.sessions, backend.bus, taken_over=lambda _: None)


def draining(
    sessions: Any, *live: Any, cluster: Cluster | None = None, tasks: Any = (), rates: RateLimits | None = None
) -> Drain:
    state = ServingState(cluster)
    state.start()

    async def try_write() -> None:
        pass

    readiness, lives = Readiness(state.may_serve, try_write), cast("Any", live)
    rates = rates or RateLimits(PolicySettings(), MemoryBackend().rates)
    return Drain(
        state=state, readiness=readiness, live=lives, lifecycle=sessions, cluster=cluster, tasks=tasks, rates=rates
    )


async def test_a_gateway_alone_only_ends_its_streams() -> None:
    live, sessions = FakeLive(), FakeSessions(rounds=3)
    drain = draining(sessions, live)
    assert await drain.is_ready()
    await drain.drain()
    assert drain.is_draining and not await drain.is_ready() and live.drained == 1
    assert sessions.rounds == 3, "nobody could take them"
    drain.admit()
    assert not drain.is_draining and await drain.is_ready()


@pytest.mark.parametrize("answers", [True, False])
async def test_sessions_are_released_as_their_calls_end(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def another() -> None:
        if not answers:
            raise StoreUnavailable("away")

    cluster, sessions = a_cluster(), FakeSessions(rounds=3)
    monkeypatch.setattr(module, "LINGER_S", 0.0)
    monkeypatch.setattr(cluster, "another", another)
    await draining(sessions, cluster=cluster).drain()
    assert sessions.rounds == 0


async def test_what_waits_for_its_rate_goes_on_at_once() -> None:
    policy = PolicySettings.model_validate({"session_rate": {"per_s": 1.1, "burst": 1}})
    rates = RateLimits(policy, MemoryBackend().rates)
    await rates.call("s")
    waiting = asyncio.ensure_future(rates.call("s"))
    assert not (await asyncio.wait((waiting,), timeout=0.01))[0]
    await draining(FakeSessions(rounds=1), rates=rates).drain()
    assert (await asyncio.wait((waiting,), timeout=0.5))[0]


@requirement("task.durable")
async def test_a_stop_waits_for_tasks_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [a_running(), a_running("input_required")]
    drain = draining(FakeSessions(rounds=1), tasks=tasks)
    await drain.drain()
    ending = asyncio.ensure_future(drain.tasks_end())
    assert (await asyncio.wait((ending,), timeout=0.15))[1], "a task works"
    del tasks[0]
    await asyncio.wait_for(ending, 1)  # nobody could answer the other
    monkeypatch.setattr(module, "HAND_OVER_S", 0.1)
    tasks.append(a_running())
    await drain.drain()
    await asyncio.wait_for(drain.tasks_end(), 1)
    assert len(tasks) == 2


@requirement("task.durable")
async def test_an_end_without_a_drain_waits_as_well_unless_it_is_hurried() -> None:
    """As of a gateway in another program, and of one on stdin."""
    tasks: list[Any] = []
    drain = draining(FakeSessions(rounds=1), tasks=tasks)
    await drain.tasks_end()
    assert not drain.is_draining, "nothing works"
    tasks.append(a_running())
    ending = asyncio.ensure_future(drain.tasks_end())
    assert (await asyncio.wait((ending,), timeout=0.15))[1] and not await drain.is_ready()
    drain.hurry()
    await asyncio.wait_for(ending, 1)


@requirement("task.asked")
async def test_clients_that_wait_for_a_task_are_answered_before_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAND_OVER_S", module._ANSWER_S + 0.05)
    waiting, live = WaitingCalls(), FakeLive()
    result, other = (Exchange(method=m, client_id=7, live=None, replies=ReplyQueue()) for m in ("tasks/result", "ping"))
    for call in (result, other):
        waiting.add(call)
        live.exchanges.add(call)
    drain = draining(FakeSessions(rounds=1), live)
    await drain.drain()
    drain.admit()
    reading = asyncio.ensure_future(result.replies.next())
    assert not (await asyncio.wait((reading,), timeout=0.15))[0], "the gateway goes on"
    await drain.drain()
    frame = await asyncio.wait_for(reading, 5)
    assert frame is not None and frame.final and frame.error_code == STORE_UNAVAILABLE
    assert b"ask for its result again" in frame.data and not other.is_over


def test_requests_are_welcome_while_a_gateway_runs_stays_and_is_found_by_its_peers() -> None:
    cluster = a_cluster()
    state = ServingState(cluster)
    assert not state.may_serve()
    state.start()
    assert state.may_serve() and state.is_running and not state.is_draining
    state.start_draining()
    assert state.is_draining and cluster.is_leaving and not state.may_serve()
    state.stop_draining()
    assert not state.is_draining and not cluster.is_leaving and state.may_serve()
    cluster.set_reachable(False)
    assert not state.may_serve()
    cluster.set_reachable(True)
    state.stop()
    assert not state.may_serve() and not state.is_running
