"""Redis Cluster: the same contract; slots that move; a master that dies; gateways on it."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from redis.crc import key_slot

from gateway.calls.event_log import EventWriter
from session_store import Backend, StoreError, StoreUnavailable
from session_store.redis import RedisBackend, keys
from session_store.testing import ALICE, BackendContract, FakeClock, a_session
from tests.requirements import requirement
from tests.support.gateway_process import PROBE, running_gateway, server
from tests.support.mcp_clients import Legacy, tool_text
from tests.support.redis_cluster import RunningCluster, running_cluster
from tests.support.redis_server import RunningRedis

pytestmark = requirement("rep.redis")


def _place(session_id: str) -> int:
    """Which of the three masters has the session."""
    return key_slot(keys.of_session(session_id)[0].encode()) * 3 // 16_384


SESSIONS = [next(f"s{n}" for n in range(99) if _place(f"s{n}") == place) for place in range(3)]
"""The id of a session for each of the three masters."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster() as cluster:
        yield cluster


@requirement("rep.redis")
class TestCluster(BackendContract):
    @pytest.fixture
    async def backend(self, clock: FakeClock, cluster: RunningCluster) -> AsyncIterator[Backend]:
        cluster.flush()
        backend = RedisBackend(cluster.url, clock=clock)
        await backend.open()
        yield backend
        await backend.close()


class Move:
    """The slot of a session moves from one master to another."""

    def __init__(self, cluster: RunningCluster, session_id: str) -> None:
        self._cluster = cluster
        self._slot = key_slot(keys.of_session(session_id)[0].encode())
        self.source = cluster.masters[next(n for n in range(3) if self._slot < (n + 1) * 16_384 // 3)]
        self.target = next(port for port in cluster.masters if port != self.source)

    def begin(self) -> None:
        """From now on, the source sends who wants keys of the slot to the target, with `ASK`."""
        run, slot = self._cluster.run, self._slot
        run(self.target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._cluster.id_of(self.source))
        run(self.source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._cluster.id_of(self.target))
        for key in run(self.source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            run(self.source, "MIGRATE", "127.0.0.1", self.target, "", 0, 1000, "KEYS", key)

    def end(self) -> None:
        for port in (self.target, self.source):
            self._cluster.run(port, "CLUSTER", "SETSLOT", self._slot, "NODE", self._cluster.id_of(self.target))


@pytest.fixture
async def moving(cluster: RunningCluster) -> AsyncIterator[tuple[RedisBackend, str, Move]]:
    """A backend, and a session in it whose slot is to move. Afterwards it is where it was."""
    cluster.flush()
    backend = RedisBackend(cluster.url)
    session = await backend.sessions.create(a_session(FakeClock(time.time())))
    move = Move(cluster, session.id)
    yield backend, session.id, move
    await backend.close()
    move.end()
    move.source, move.target = move.target, move.source
    move.begin()
    move.end()


async def test_a_slot_that_moves_loses_no_increment(
    cluster: RunningCluster, moving: tuple[RedisBackend, str, Move]
) -> None:
    backend, session, move = moving
    record, state, *_ = keys.of_session(session)
    assert cluster.node(move.source).exists(record)
    total = 0

    async def counting() -> None:
        nonlocal total
        for _ in range(300):
            await backend.state.increment(session, "n", 1)
            total += 1

    work = asyncio.gather(counting(), counting())
    await asyncio.to_thread(move.begin)
    await asyncio.to_thread(move.end)
    await work
    assert total == 600 and await backend.state.get(session, "n") == b"600"
    assert cluster.node(move.target).exists(state)


async def test_a_script_is_given_to_the_node_that_a_slot_moves_to(
    cluster: RunningCluster, moving: tuple[RedisBackend, str, Move]
) -> None:
    backend, session, move = moving
    assert await backend.state.increment(session, "n", 1) == 1
    move.begin()
    cluster.run(move.target, "SCRIPT", "FLUSH")
    assert await backend.state.increment(session, "n", 1) == 2
    move.end()


async def test_a_command_of_keys_of_which_some_have_moved_waits_for_the_others(
    cluster: RunningCluster, moving: tuple[RedisBackend, str, Move]
) -> None:
    backend, session, move = moving

    def refusals() -> Any:
        return cluster.node(move.target).info("errorstats").get("errorstat_TRYAGAIN", {"count": 0})["count"]

    before = refusals()
    move.begin()
    increment = asyncio.create_task(backend.state.increment(session, "n", 1))  # of a state that is not there yet
    async with asyncio.timeout(60):
        while refusals() == before and not increment.done():  # noqa: ASYNC110  # only the node can tell
            await asyncio.sleep(0)
    move.end()
    assert await increment == 1 and refusals() > before


async def test_a_master_that_dies_is_replaced_and_nothing_is_gone() -> None:
    with running_cluster(replicas=True) as cluster:
        backend = RedisBackend(cluster.url)
        await backend.open()
        sessions = [await backend.sessions.create(a_session(FakeClock(time.time()))) for _ in range(30)]
        for session in sessions:
            await backend.state.set(session.id, "k", b'"kept"')
        sizes = [cluster.node(port).dbsize() for port in cluster.masters]
        cluster.wait(lambda: sizes == [cluster.node(port).dbsize() for port in cluster.ports[3:]])
        heard: list[bytes | None] = []
        async with backend.bus.subscribed("topic", heard.append):
            cluster.processes[cluster.masters[0]].kill()
            for session in sessions:
                async with asyncio.timeout(30):
                    while True:
                        try:
                            assert await backend.sessions.resume(session.id, ALICE) is not None, "never as if gone"
                            assert await backend.state.get(session.id, "k") == b'"kept"'
                            break
                        except StoreUnavailable:
                            await asyncio.sleep(0.1)
            async with asyncio.timeout(60):
                while b"again" not in heard:
                    with contextlib.suppress(StoreUnavailable):
                        await backend.bus.publish("topic", b"again")
                    await asyncio.sleep(0.1)
        await backend.close()


@requirement("rep.failover")
@pytest.mark.parametrize("learns", ["from the node that was the master", "from the slot table"])
async def test_a_copy_that_becomes_a_master_behind_an_open_connection_counts_as_newly_connected(learns: str) -> None:
    with running_cluster(replicas=True) as cluster:
        copy, session = cluster.ports[3], SESSIONS[0]
        backend = RedisBackend(f"redis+cluster://127.0.0.1:{copy}")  # from which it reads the slot table
        commands: Any = backend.commands
        told = list[str]()
        backend.directory.when_connected(lambda: told.append("connected"))
        for each in SESSIONS:
            await backend.sessions.peek(each)
        assert len(told) == 4, "the copy, and three masters"
        cluster.run(copy, "CLUSTER", "FAILOVER", "TAKEOVER")
        cluster.wait(lambda: cluster.node(cluster.masters[0]).info("replication")["role"] == "slave")
        if learns == "from the slot table":
            await commands._read_slot_table()
        assert await backend.sessions.peek(session) is None and len(told) == 5
        await commands._read_slot_table()
        assert len(told) == 5
        await backend.close()


@requirement("spec.stream-log")
async def test_a_node_that_does_not_answer_delays_nothing_of_the_others(patient: RunningCluster) -> None:
    backend = RedisBackend(patient.url)
    await backend.open()
    sick, *healthy = SESSIONS
    writer = EventWriter(backend.events, lambda _: 1)
    for session in (sick, *healthy):
        await writer.append(session, "one", b"before")
    frozen = patient.processes[patient.masters[0]]
    frozen.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    ids: dict[str, list[str | None]] = {session: [] for session in (sick, *healthy)}
    while time.monotonic() - begun < 3.0:  # several of its timeouts
        ids[sick] += await writer.record(sick, "one", [(b"a", False)])
        for session in healthy:
            async with asyncio.timeout(0.7):  # less than one of its timeouts
                ids[session].append(await writer.append(session, "one", b"a"))
    with pytest.raises(StoreUnavailable):
        await writer.settle(sick)
    async with asyncio.timeout(0.7):
        for _ in range(6):  # which any node answers: each has its turn
            await backend.commands.run("TIME")
    frozen.send_signal(signal.SIGCONT)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await writer.settle(sick)
                break
    for session, of_session in ids.items():
        first = of_session[0]
        assert first is not None
        kept = [event.id for event in await backend.events.kept(session, "one", first)]
        assert [first, *kept][-256:] == of_session[-256:], "each is there, and once"
    await backend.close()


@requirement("spec.stream-log")
async def test_streams_are_followed_although_the_node_of_the_bus_does_not_answer(patient: RunningCluster) -> None:
    backend = RedisBackend(patient.url)
    await backend.open()
    heard: asyncio.Queue[bytes | None] = asyncio.Queue()
    async with backend.bus.subscribed("topic", heard.put_nowait):
        place = next(n for n, port in enumerate(patient.masters) if b"topic" in patient.run(port, "PUBSUB", "CHANNELS"))
        healthy = next(session for session in SESSIONS if _place(session) != place)
        first = await backend.events.append(healthy, "one", b"a")
        await backend.events.append(healthy, "one", b"b")
        patient.processes[patient.masters[place]].send_signal(signal.SIGSTOP)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    async with contextlib.aclosing(backend.events.follow(healthy, "one", first)) as following:
                        assert (await anext(following)).frame == b"b"
                        break
            assert await heard.get() is None, "messages may have been missed"
            while b"again" not in [heard.get_nowait() for _ in range(heard.qsize())]:
                with contextlib.suppress(StoreUnavailable):
                    await backend.bus.publish("topic", b"again")
                await asyncio.sleep(0.05)
    await backend.close()


@pytest.fixture
def patient(cluster: RunningCluster) -> Iterator[RunningCluster]:
    """A cluster that waits for a node which does not answer, and serves the slots of the others meanwhile."""
    cluster.flush()
    for port in cluster.masters:
        cluster.run(port, "CONFIG", "SET", "cluster-require-full-coverage", "no", "cluster-node-timeout", 60_000)
    yield cluster
    for process in cluster.processes.values():
        process.send_signal(signal.SIGCONT)
    for port in cluster.masters:
        cluster.run(port, "CONFIG", "SET", "cluster-require-full-coverage", "yes", "cluster-node-timeout", 1_000)
    cluster.wait(lambda: all(cluster.state(port) == "ok" for port in cluster.masters))


async def test_a_single_server_is_told_to_be_no_cluster(redis_server: RunningRedis) -> None:
    backend = RedisBackend(redis_server.url.replace("redis://", "redis+cluster://").removesuffix("/0"))
    with pytest.raises(StoreError, match="cluster"):
        await backend.open()
    await backend.close()


@requirement("rep.any")
def test_gateways_serve_sessions_from_a_cluster(cluster: RunningCluster, http: httpx.Client) -> None:
    options, env = {"store": cluster.url}, {"MCP_GATEWAY_KEYS": "k" * 40}
    with (
        running_gateway({"probe": server(PROBE)}, options=options, env=env, must_stop=False) as first,
        running_gateway({"probe": server(PROBE)}, options=options, env=env, must_stop=False) as second,
    ):
        for _ in range(6):  # their sessions lie on all nodes
            client = Legacy(first.url, http).open()
            pid = tool_text(client.tool("pid"))
            client.url = second.url
            assert tool_text(client.tool("pid")) == pid
            assert client.delete().status_code == 200
