"""Workers of one parent: they know each other, and sockets travel between them."""

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.serving.socket_passing import Inboxes, SiblingWorkers, inherited_siblings
from gateway.serving.uvicorn_server import HandedConnections
from tests.requirements import requirement
from transports.inbound.connection_handover import MOST_MOVES
from transports.inbound.connections import Connections
from transports.inbound.unauthenticated_limits import Limits

pytestmark = requirement("rep.workers")


VARIABLE = "MCP_GATEWAY_WORKER_SIBLINGS"
Worker = Callable[[int], SiblingWorkers]


@pytest.fixture
def inboxes() -> Iterator[Inboxes]:
    made = Inboxes(3)
    yield made
    made.close()


@pytest.fixture
def worker(inboxes: Inboxes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker by its number, as a process that inherits copies of the descriptors."""
    made = []

    def start(number: int) -> SiblingWorkers:
        given, descriptors = inboxes.for_worker(number)
        copies = [os.dup(descriptor) for descriptor in descriptors]
        assert given == {VARIABLE: ",".join(map(str, [number, *descriptors]))}
        monkeypatch.setenv(VARIABLE, ",".join(map(str, [number, *copies])))
        found = inherited_siblings(Counter())
        assert found is not None and VARIABLE not in os.environ
        assert not any(os.get_inheritable(copy) for copy in copies)
        made.append(found)
        return found

    yield start
    for each in made:
        each.close()


def test_each_finds_the_others_by_their_replica(worker: Worker) -> None:
    assert inherited_siblings(Counter()) is None, "a process that is no worker"
    first, second = worker(0), worker(2)
    first.join("aaaaaaaaaaaa")
    assert second.place_of("bbbbbbbbbbbb") is None
    second.join("bbbbbbbbbbbb")
    assert (first.place_of("bbbbbbbbbbbb"), second.place_of("aaaaaaaaaaaa")) == (2, 0)
    assert first.place_of("aaaaaaaaaaaa") is None, "itself"
    assert first.place_of("") is None, "the row of a worker that has not started"
    worker(2).join("cccccccccccc")
    assert (first.place_of("bbbbbbbbbbbb"), first.place_of("cccccccccccc")) == (None, 2)


def test_a_connection_arrives_with_what_its_client_has_sent(worker: Worker) -> None:
    giver, taker = worker(0), worker(1)
    client, accepted = socket.socketpair()
    with client, accepted:
        client.sendall(b"early")
        assert giver.give(accepted.fileno(), 1, 2)
        accepted.close()
        client.sendall(b" and late")
        received = taker.receive()
        assert received is not None and (received.sender, received.moves) == (0, 2)
        assert not received.connection.get_inheritable()
        assert received.connection.recv(100) == b"early and late"
        assert taker.give_back(received, 4) and taker.receive() is None
        back = giver.receive()
        assert back is not None and (back.sender, back.moves) == (1, 4)
        back.connection.sendall(b"answer")
        assert client.recv(100) == b"answer"
        back.connection.close()
        assert client.recv(100) == b"", "nobody else holds it"
    assert (giver.counts, taker.counts) == ({"given": 1}, {"returned": 1})


def test_what_was_sent_to_a_worker_that_dies_is_received_by_the_next(worker: Worker) -> None:
    giver, dying = worker(0), worker(1)
    client, accepted = socket.socketpair()
    with client, accepted:
        assert giver.give(accepted.fileno(), 1, 1)
        dying.inbox.close()
        accepted.close()
        received = worker(1).receive()
        assert received is not None
        received.connection.close()
        assert client.recv(100) == b""


def test_a_full_inbox_takes_nothing_more_and_loses_nothing(worker: Worker) -> None:
    giver, taker = worker(0), worker(1)
    client, accepted = socket.socketpair()
    with client, accepted:
        given = 0
        while giver.give(accepted.fileno(), 1, 1):
            given += 1
            assert given < 10_000
        assert giver.counts == {"given": given, "kept": 1} and given >= 16
        taken = 0
        while (received := taker.receive()) is not None:
            received.connection.close()
            taken += 1
        assert taken == given and giver.give(accepted.fileno(), 1, 1)


def test_a_message_without_a_connection_is_skipped(inboxes: Inboxes, worker: Worker) -> None:
    taker = worker(1)
    _, descriptors = inboxes.for_worker(0)
    with socket.socket(fileno=os.dup(descriptors[2 + 1])) as outlet:
        outlet.send(b"\0\0\1")
    assert taker.receive() is None


# -- Connections that siblings send: taken, given back, or refused as any other


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
        async with asyncio.timeout(60):
            while self.taker.counts.total() == before:  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(0)
        asking.setblocking(False)
        back = self.giver.receive()
        if back is None:
            said = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(asking, 100), 60)
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
    for client, is_taken, count in (
        ("127.0.0.1", True, 1),
        ("127.0.0.1", False, 1),  # its address has as many as it may have
        ("127.0.0.2", True, 2),
        ("127.0.0.3", False, 2),  # there are as many as there may be
    ):
        _, back = await pair.given(client)
        assert (back is None, len(pair.connections)) == (is_taken, count)
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
