"""Connections that siblings send: taken, given back, or refused as any other."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.serving.sibling_workers import SiblingWorkers
from gateway.serving.uvicorn_server import HandedConnections
from tests.requirements import requirement
from tests.unit.serving.conftest import Worker
from transports.inbound.connections import Connections
from transports.inbound.hand_over import MOST_MOVES
from transports.inbound.limits import Limits

pytestmark = [pytest.mark.anyio, requirement("rep.workers")]


class Echo(asyncio.Protocol):
    """In place of an HTTP connection: says how often it has moved."""

    def __init__(self, connections: Connections, moves: int) -> None:
        self._connections = connections
        self._moves = moves
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername")[0]
        if self._connections.enter(cast("Any", self), peer) is not None:
            transport.close()
        else:
            transport.write(b"%d" % self._moves)

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Pair:
    """Worker 0, which sends, and worker 1, which receives and has room for two connections, one of each address."""

    def __init__(self, siblings: list[SiblingWorkers]) -> None:
        self.giver, self.taker = siblings
        self.serves = True
        self.open = contextlib.ExitStack()
        self.connections = Connections(Limits(connections=2, peer_connections=1), Counter())
        self.handed = HandedConnections(self.taker, self.connections, lambda: self.serves)

        def made(*, moves: int, **_: Any) -> Echo:
            echo = Echo(self.connections, moves)
            self.open.callback(echo.end)
            return echo

        config = SimpleNamespace(http_protocol_class=made)
        server: Any = SimpleNamespace(config=config, server_state=None, lifespan=SimpleNamespace(state={}))
        self.handed.start(server, "bbbbbbbbbbbb")

    def give(self, client: str, moves: int = 1) -> socket.socket:
        """A client of that address, whose connection is sent from worker 0 to worker 1."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            asking = self.open.enter_context(socket.socket())
            asking.bind((client, 0))
            asking.connect(listener.getsockname())
            accepted, _ = listener.accept()
        assert self.giver.place_of("bbbbbbbbbbbb") == 1 and self.giver.give(accepted.fileno(), 1, moves)
        accepted.close()
        return asking

    async def given(self, client: str, moves: int = 1) -> tuple[socket.socket, socket.socket | str | None]:
        """A client of that address, and the connection if it has come back to worker 0."""
        before = self.taker.counts.total()
        asking = self.give(client, moves)
        async with asyncio.timeout(5):
            while self.taker.counts.total() == before:  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(0)
        asking.setblocking(False)
        back = self.giver.receive()
        if back is None:
            said = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(asking, 100), 5)
            assert said in (b"", str(moves).encode()), said
            return asking, None if said else "refused"
        assert back.moves == MOST_MOVES + 1
        return asking, self.open.enter_context(back.connection)


@pytest.fixture
async def pair(worker: Worker) -> AsyncIterator[Pair]:
    made = Pair([worker(0), worker(1)])
    yield made
    made.handed.stop()
    made.connections.close()
    made.open.close()


async def test_a_connection_is_served_where_there_is_room_for_its_client(pair: Pair) -> None:
    _, back = await pair.given("127.0.0.1")
    assert back is None and len(pair.connections) == 1
    _, back = await pair.given("127.0.0.1")
    assert back is not None, "its address has as many as it may have"
    _, back = await pair.given("127.0.0.2")
    assert back is None and len(pair.connections) == 2
    _, back = await pair.given("127.0.0.3")
    assert back is not None, "there are as many as there may be"
    assert pair.taker.counts == {"taken": 2, "returned": 2}


async def test_a_worker_that_drains_gives_back_what_it_gets(pair: Pair) -> None:
    pair.serves = False
    client, back = await pair.given("127.0.0.1")
    assert isinstance(back, socket.socket)
    back.sendall(b"still there")
    assert client.recv(100) == b"still there"


async def test_one_that_has_come_back_is_not_sent_again(pair: Pair) -> None:
    await pair.given("127.0.0.1")
    _, back = await pair.given("127.0.0.1", MOST_MOVES + 1)
    assert back == "refused", "as a new connection of that address would be"
    _, back = await pair.given("127.0.0.2", MOST_MOVES + 1)
    assert back is None


async def test_nothing_is_received_after_the_stop(pair: Pair) -> None:
    pair.handed.stop()
    client = pair.give("127.0.0.1")
    for _ in range(20):
        await asyncio.sleep(0)
    assert pair.taker.counts == {}
    received = pair.taker.receive()
    assert received is not None, "it is for the worker that is started in this one's place"
    received.connection.close()
    assert client.recv(1) == b""
