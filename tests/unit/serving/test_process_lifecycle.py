"""What a gateway does second by second goes on after any failure, and what is told of a store that is away."""

import asyncio
import logging
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.in_flight import WaitingCalls
from gateway.cluster.ownership import Cluster
from gateway.config.policy import PolicySettings
from gateway.errors import STORE_UNAVAILABLE
from gateway.policy import rate_limits
from gateway.policy.rate_limits import RateLimits
from gateway.serving import drain as module
from gateway.serving import hidden_process, process_lifecycle
from gateway.serving.drain import Drain
from gateway.serving.process_lifecycle import Lifecycle, StoreWatch
from gateway.serving.readiness import KNOWN_S, Readiness, ServingState
from session_store import MemoryBackend, StoreUnavailable
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.support.virtual_time import skip_waits
from tests.unit.tasks.parts import a_task
from transports.reply_queue import ReplyQueue


@requirement("task.durable")
@pytest.mark.parametrize(("every_s", "is_told_again"), [(60.0, False), (0.0, True)])
async def test_no_failure_ends_the_upkeep(
    every_s: float, is_told_again: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure that comes back is logged again after a while."""
    monkeypatch.setattr(process_lifecycle, "_EVERY_S", 0.001)
    monkeypatch.setattr(process_lifecycle, "_LOGGED_EVERY_S", every_s)
    done = asyncio.Event()
    calls = {"renew": 0, "sweep": 0, "live": 0}

    def count(what: str) -> None:
        calls[what] += 1
        if min(calls.values()) >= 3:
            done.set()
        raise msgspec.ValidationError(what)

    async def sweep() -> None:
        count("sweep")

    async def live() -> None:
        count("live")

    works: dict[str, Any] = {
        "records cannot be renewed": partial(process_lifecycle._each_second, partial(count, "renew")),
        "tasks cannot be recovered": partial(process_lifecycle._each_second, sweep),
        "the lease cannot be renewed": live,
    }
    running = [asyncio.create_task(process_lifecycle._kept_running(work, failed)) for failed, work in works.items()]
    async with asyncio.timeout(60):
        await done.wait()
    assert not any(task.done() for task in running)
    lines = len([record for record in caplog.records if "cannot be" in record.message])
    assert lines >= 9 if is_told_again else lines == 3
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@requirement("cred.consent")
@pytest.mark.parametrize(("cluster", "ends"), [(None, True), (False, True), (True, False)])
async def test_a_replica_with_an_older_configuration_ends_nothing_that_people_have_consented_to(
    cluster: bool | None, ends: bool
) -> None:
    ended: list[object] = []

    async def end(*given: object) -> None:
        ended.append(given)

    options = SimpleNamespace(secrets="the secrets", store="memory:", shortest_ttl_s=60.0)
    found = None if cluster is None else SimpleNamespace(configuration=SimpleNamespace(is_outdated=cluster))
    base = SimpleNamespace(backend=None, settings=SimpleNamespace(gateway=options), cluster=found)
    servers = SimpleNamespace(consented=SimpleNamespace(end_unused=end))
    rights = SimpleNamespace(tasks=SimpleNamespace(rights=SimpleNamespace(is_known="who")))
    parts: Any = SimpleNamespace(foundation=base, servers=servers, http=rights)
    await Lifecycle(parts)._end_unused_grants()
    assert ended == [("the secrets", "who")] * ends


class Flaky(MemoryBackend):
    is_away = True

    async def ping(self) -> None:
        if self.is_away:
            raise StoreUnavailable("connection refused")


@requirement("first.store")
async def test_a_store_that_is_away_is_named_once_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = Flaky()
    watch = StoreWatch(backend, "redis://me:secret@redis.example:6379/0")
    await watch.check()
    await watch.check()
    [said] = caplog.messages
    assert said.startswith("the session store redis://…@redis.example:6379/0 does not answer: connection refused;")
    assert "503" in said and watch.fault == "connection refused"
    backend.is_away = False
    await watch.check()
    assert caplog.messages[1:] == ["the session store redis://…@redis.example:6379/0 answers again"]
    assert not watch.fault


# -- `gateway.serving.drain` and its state: it is not ready at once, and its sessions are released


class FakeSessions:
    """Sessions whose calls take some rounds to be answered."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    async def release_idle(self) -> bool:
        self.rounds -= 1
        return self.rounds <= 0


class SessionsOutOfReach(FakeSessions):
    """The store does not answer meanwhile."""

    async def release_idle(self) -> bool:
        if not await super().release_idle():
            raise StoreUnavailable("away")
        return True


class FakeLive:
    """A session without streams."""

    def __init__(self) -> None:
        self.drained = self.admitted = 0
        self.exchanges: set[Any] = set()

    def drain(self) -> None:
        self.drained += 1

    def admit(self) -> None:
        self.admitted += 1


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The time of drains and of rates, which passes at once."""
    clock = skip_waits(monkeypatch)
    monkeypatch.setattr(rate_limits, "monotonic", clock)
    return clock


async def goes_on(task: asyncio.Future[Any]) -> bool:
    """Return True if it has not ended after a moment."""
    return not (await asyncio.wait((task,), timeout=0.1))[0]


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
    assert not drain.is_draining and await drain.is_ready() and live.admitted == 1


@pytest.mark.parametrize("sessions", [FakeSessions, SessionsOutOfReach])
@pytest.mark.parametrize("answers", [True, False])
async def test_sessions_are_released_as_their_calls_end_and_those_that_are_claimed_meanwhile_too(
    answers: bool, sessions: type[FakeSessions], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, cluster, found = clock(), a_cluster(), sessions(rounds=3)
    if not answers:
        monkeypatch.setattr(cluster, "random_peer", AsyncMock(side_effect=StoreUnavailable("away")))
    asyncio.get_running_loop().call_later(module.LINGER_S / 2, setattr, found, "rounds", 3)
    await draining(found, cluster=cluster).drain()
    assert found.rounds <= 0 and (clock() - began >= module.LINGER_S) is not answers


async def test_what_waits_for_its_rate_goes_on_at_once(clock: FakeClock) -> None:
    policy = PolicySettings.model_validate({"session_rate": {"per_s": 1.1, "burst": 1}})
    rates = RateLimits(policy, MemoryBackend().rates)
    await rates.count_call("s")
    waiting = asyncio.ensure_future(rates.count_call("s"))
    assert await goes_on(waiting)
    await draining(FakeSessions(rounds=1), rates=rates).drain()
    await asyncio.wait_for(waiting, 0.5)


@requirement("task.durable")
async def test_a_stop_waits_for_tasks_but_not_for_ever(clock: FakeClock) -> None:
    tasks = [a_running(), a_running("input_required")]
    drain = draining(FakeSessions(rounds=1), tasks=tasks)
    await drain.drain()
    ending = asyncio.ensure_future(drain.tasks_end())
    assert await goes_on(ending), "a task works"
    del tasks[0]
    await asyncio.wait_for(ending, 1)  # nobody could answer the other
    tasks.append(a_running())
    began = clock()
    await drain.drain()
    await drain.tasks_end()
    assert clock() - began == pytest.approx(module.HAND_OVER_S, abs=0.1)


@requirement("task.durable")
async def test_an_end_without_a_drain_waits_as_well_unless_it_is_hurried(clock: FakeClock) -> None:
    """As of a gateway in another program, and of one on stdin."""
    tasks: list[Any] = []
    drain = draining(FakeSessions(rounds=1), tasks=tasks)
    await drain.tasks_end()
    assert not drain.is_draining, "nothing works"
    tasks.append(a_running())
    ending = asyncio.ensure_future(drain.tasks_end())
    assert await goes_on(ending) and not await drain.is_ready()
    drain.hurry()
    await asyncio.wait_for(ending, 1)


@requirement("task.asked")
async def test_clients_that_wait_for_a_task_are_answered_before_they_are_cut(clock: FakeClock) -> None:
    waiting, live = WaitingCalls(), FakeLive()
    result, other = (Exchange(method=m, client_id=7, live=None, replies=ReplyQueue()) for m in ("tasks/result", "ping"))
    for call in (result, other):
        waiting.add(call)
        live.exchanges.add(call)
    drain = draining(FakeSessions(rounds=1), live)
    await drain.drain()
    drain.admit()
    reading = asyncio.ensure_future(result.replies.next())
    assert await goes_on(reading), "the gateway goes on"
    began = clock()
    await drain.drain()
    frame = await reading
    assert clock() - began == pytest.approx(module.HAND_OVER_S - module._ANSWER_S, abs=0.1)
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


# -- What a probe asks of the store, and what it is told from memory


class Probed(Readiness):
    """The readiness of a process that runs, whose servers have answered, and whose store is there, until it is said."""

    runs = has_answered = True
    fails = False
    writes = 0

    def __init__(self, *, is_shared: bool = False) -> None:
        super().__init__(lambda: self.runs, self.write, lambda: self.has_answered, is_shared=is_shared)

    async def write(self) -> None:
        self.writes += 1
        if self.fails:
            raise StoreUnavailable("away")


@requirement("wall.ready")
async def test_one_write_tells_all_who_ask_at_once() -> None:
    process = Probed()
    assert all([await process.is_ready() for _ in range(100)]) and process.writes == 1
    process.runs = False
    assert not await process.is_ready(), "at once"


@requirement("wall.ready")
@pytest.mark.parametrize(
    ("fact", "value", "writes"), [("runs", False, 0), ("has_answered", False, 0), ("fails", True, 1)]
)
async def test_a_process_is_ready_once_nothing_is_missing(
    fact: str, value: bool, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, clock = Probed(), FakeClock()
    monkeypatch.setattr("gateway.serving.readiness.monotonic", clock)
    setattr(process, fact, value)
    assert not await process.is_ready() and process.writes == writes
    setattr(process, fact, not value)
    clock.pass_time(KNOWN_S)
    assert await process.is_ready()


@requirement("wall.ready", "rep.store-down")
@pytest.mark.parametrize("is_shared", [True, False])
async def test_who_has_reached_a_shared_store_stays_ready_without_it(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, clock = Probed(is_shared=is_shared), FakeClock()
    monkeypatch.setattr("gateway.serving.readiness.monotonic", clock)
    for process.fails, is_ready, is_away in ((True, False, False), (False, True, False), (True, is_shared, True)):
        assert (await process.is_ready(), process.store_is_away) == (is_ready, is_away)
        clock.pass_time(KNOWN_S)
    process.runs = False
    assert not await process.is_ready(), "it drains, or its peers do not find it"


# -- Whether other processes can read the gateway's memory


@requirement("wall.secrets")
def test_it_says_when_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_process, "_prctl", lambda option: 0)
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    assert hidden_process.why_in_sight() == ""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert (
        hidden_process.why_in_sight() == "Running as root: servers can read the gateway's memory. Use a dedicated user."
    )
    monkeypatch.setattr(hidden_process, "_prctl", lambda option: 1)
    assert "PR_SET_DUMPABLE" in hidden_process.why_in_sight()
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Only Linux" in hidden_process.why_in_sight()
