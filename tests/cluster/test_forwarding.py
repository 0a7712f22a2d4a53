"""Requests between replicas: whole frames, heartbeats, bounds for unknown senders, and how each side ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.config.peer_tls import PeerTlsSettings, peer_tls
from tests.requirements import requirement
from tests.support.certificates import Authority
from transports import replica_wire_server as replica_wire_server
from transports.replica_wire import (
    PeerConnection,
    PeerConnectionLost,
    PeerConnectionPool,
    PeerRefused,
    PeerTimedOut,
    PeerTls,
)
from transports.replica_wire_server import Incoming, PeerBounds, PeerServer, PeerUnknown
from transports.sealed_wire import Answering, Asking

pytestmark = pytest.mark.anyio

KEYS = [b"k" * 32]


@contextlib.asynccontextmanager
async def answering(handler: Callable[[Incoming], Awaitable[None]]) -> AsyncIterator[tuple[PeerConnectionPool, str]]:
    """A pool, and the address of a server."""
    failures: list[bool] = []
    pool = PeerConnectionPool(KEYS)
    async with PeerServer(handler, lambda: failures.append(True), opening=bytes, own=(KEYS, "peer")).listening(
        "127.0.0.1", 0
    ) as port:
        try:
            yield pool, f"127.0.0.1:{port}"
        finally:
            pool.close()


async def asked(pool: PeerConnectionPool, address: str, body: bytes) -> PeerConnection:
    connection = await pool.open(address, "peer")
    connection.ask(b"head", body)
    return connection


@requirement("rep.any")
async def test_frames_of_any_size_arrive_whole_and_connections_are_used_again() -> None:
    async def echo(incoming: Incoming) -> None:
        assert incoming.opened == b"head"
        await incoming.send(b"b", incoming.body)
        await incoming.send(b"e")

    async with answering(echo) as (pool, address):
        first: PeerConnection | None = None
        for size in (0, 1, 5, 70_000, 9_000_000):
            connection = await asked(pool, address, b"x" * size)
            first = first or connection
            assert await connection.next() == (b"b", b"x" * size) and await connection.next() == (b"e", b"")
            assert connection is first
            connection.done()


@requirement("rep.any", "rep.honest")
@pytest.mark.parametrize("size", [1, 1_000_000])
async def test_a_request_that_comes_right_after_an_answer_waits_for_the_end_of_the_work(size: int) -> None:
    at_work: list[bytes] = []
    may_end = asyncio.Event()

    async def ends_late(incoming: Incoming) -> None:
        assert not at_work, "one at a time"
        at_work.append(incoming.body)
        await incoming.send(b"b", incoming.body[-1:])
        await incoming.send(b"e")
        await may_end.wait()
        at_work.clear()

    async with answering(ends_late) as (pool, address):
        first = await asked(pool, address, b"1")
        assert [await first.next(), await first.next()] == [(b"b", b"1"), (b"e", b"")]
        first.done()
        second = await asked(pool, address, b"x" * size + b"2")
        assert second is first
        answer = asyncio.ensure_future(second.next())
        await asyncio.sleep(0)
        may_end.set()
        assert await answer == (b"b", b"2")


@requirement("rep.any")
async def test_a_request_before_the_answer_ends_closes_the_connection() -> None:
    async def never(incoming: Incoming) -> None:
        await incoming.left()

    async with answering(never) as (pool, address):
        connection = await asked(pool, address, b"1")
        connection.ask(b"head", b"2")
        with pytest.raises(PeerConnectionLost):
            await connection.next()


@requirement("rep.any")
async def test_a_reader_that_is_slow_holds_up_who_writes_to_it_and_nobody_else() -> None:
    written = 0

    async def endless(incoming: Incoming) -> None:
        nonlocal written
        if incoming.body == b"small":
            await incoming.send(b"e")
            return
        for _ in range(200):
            await incoming.send(b"b", b"x" * 100_000)
            written += 1
        await incoming.send(b"e")

    async with answering(endless) as (pool, address):
        slow = await asked(pool, address, b"large")
        quick = await asked(pool, address, b"small")
        assert await quick.next() == (b"e", b"")
        last = -1
        while written != last:  # until it is held up
            last = written
            await asyncio.sleep(0.2)
        assert written < 200
        count = 0
        while (await slow.next())[0] != b"e":
            count += 1
        assert count == 200


@requirement("rep.honest")
async def test_work_in_progress_gives_heartbeats_and_a_stopped_process_none() -> None:
    go_on = asyncio.Event()

    async def working(incoming: Incoming) -> None:
        await go_on.wait()
        await incoming.send(b"e")

    async with answering(working) as (pool, address):
        connection = await asked(pool, address, b"")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await connection.next()
        go_on.set()
        assert await connection.next() == (b"e", b"")

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        step = Answering(KEYS, "peer").step(bytearray(await reader.readexactly(len(Asking(KEYS, "peer").begin()))))
        assert isinstance(step, bytes)
        writer.write(step)
        await go_on.wait()
        writer.close()

    go_on.clear()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    pool = PeerConnectionPool(KEYS)
    connection = await asked(pool, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", b"")
    for _ in range(2):
        with pytest.raises(PeerTimedOut):
            await connection.next()
    go_on.set()
    with pytest.raises(PeerConnectionLost):
        await connection.next()
    server.close()
    pool.close()
    await asyncio.sleep(0)  # it closes with the loop's next turn


@requirement("rep.honest")
async def test_who_leaves_is_noticed_on_both_sides() -> None:
    left = asyncio.Event()

    async def waiting(incoming: Incoming) -> None:
        if incoming.body == b"break":
            raise RuntimeError("a fault of ours")
        await incoming.left()
        left.set()

    async with answering(waiting) as (pool, address):
        (await asked(pool, address, b"")).close()
        async with asyncio.timeout(5):
            await left.wait()
        with pytest.raises(PeerConnectionLost):
            await (await asked(pool, address, b"break")).next()
    with pytest.raises(PeerRefused):
        await PeerConnectionPool(KEYS).open(address, "peer")


# -- strangers at the internal listener


def _only_heads(head: bytes) -> bytes:
    if head != b"head":
        raise PeerUnknown(b"invalid")
    return head


@contextlib.asynccontextmanager
async def guarded(
    bounds: PeerBounds | None = None, tls: PeerTls | None = None
) -> AsyncIterator[tuple[PeerConnectionPool, PeerServer, int, list[bool]]]:
    """A server that knows one head, and echoes; what it refused."""
    refused: list[bool] = []

    async def echo(incoming: Incoming) -> None:
        await incoming.send(b"e", incoming.body)

    server = PeerServer(
        echo,
        lambda: None,
        opening=_only_heads,
        own=(KEYS, "peer"),
        tls=tls,
        refused=lambda: refused.append(True),
        bounds=bounds or PeerBounds(),
    )
    pool = PeerConnectionPool(KEYS, tls)
    async with server.listening("127.0.0.1", 0) as port:
        yield pool, server, port, refused
        pool.close()


async def _ended(reader: asyncio.StreamReader) -> bytes:
    """What it said until it closed."""
    said = b""
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                said += data
    return said


@pytest.fixture
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> PeerTls | None:
    """Contexts of both sides, if the test wants them."""
    if not request.param:
        return None
    certificate = Authority(tmp_path).issue("peer")
    return peer_tls(PeerTlsSettings(certificate=certificate, authority=tmp_path / "ca.pem"))


encrypted = pytest.mark.parametrize("tls", [False, True], indirect=True, ids=["plain", "tls"])


@requirement("wall.before-auth")
@pytest.mark.parametrize("start", [
    b"q" + (1 << 30).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"head",  # a body of 1 GiB
    b"q" + (1 << 29).to_bytes(4, "big") + (1 << 28).to_bytes(4, "big"),  # a head of 256 MiB
    b"q" + (8).to_bytes(4, "big") + (200).to_bytes(4, "big"),  # a head longer than its frame
    b"GET /mcp HTTP/1.1\r\n",
    b"e" + bytes(8),
])  # fmt: skip
async def test_a_stranger_that_announces_much_is_cut_at_once(start: bytes) -> None:
    async with guarded() as (_, server, port, refused):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        assert await _ended(reader) == b"" and refused == [True] and not server.active
        writer.close()


@requirement("wall.before-auth")
async def test_nothing_of_a_body_is_kept_before_its_head_is_known() -> None:
    async with guarded(PeerBounds(body_bytes=1 << 26)) as (pool, server, port, refused):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"q" + ((1 << 25) + 8).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"none")
        assert await _ended(reader) == b"" and refused == [True], "who has no keys is cut"
        writer.close()
        unknown = await pool.open(f"127.0.0.1:{port}", "peer")
        assert unknown.transport is not None
        unknown.transport.write(b"q" + ((1 << 25) + 8).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"none")
        assert await unknown.next() == (b"r", b"invalid") and refused == [True, True]
        for _ in range(16):
            await unknown.write(b"x" * (1 << 20))
        assert not any(connection.held_bytes for connection in server.connections)
        unknown.close()
        connection = await pool.open(f"127.0.0.1:{port}", "peer")
        connection.ask(b"head", b"x" * (1 << 22))
        assert await connection.next() == (b"e", b"x" * (1 << 22)), "one of ours has room for it"


@requirement("wall.before-auth")
@encrypted
async def test_a_stranger_that_says_nothing_has_seconds_and_one_of_ours_may_be_idle(
    monkeypatch: pytest.MonkeyPatch, tls: PeerTls | None
) -> None:
    monkeypatch.setattr(replica_wire_server, "HEAD_WITHIN_S", 0.2)
    monkeypatch.setattr(replica_wire_server, "BODY_WITHIN_S", 0.2)
    async with guarded(tls=tls) as (pool, _, port, refused):
        connection = await pool.open(f"127.0.0.1:{port}", "peer")
        connection.ask(b"head", b"")
        assert await connection.next() == (b"e", b"")
        for start in (b"", b"q\0\0\0", b"q\0\0\0\x68\0\0\0\x04head" + b"x" * 10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            assert await _ended(reader) == b""
            writer.close()
        assert len(refused) == 3
        connection.ask(b"head", b"again")
        assert await connection.next() == (b"e", b"again")
        monkeypatch.setattr(replica_wire_server, "IDLE_S", 0.2)
        with pytest.raises(PeerConnectionLost):
            await connection.next()
        assert len(refused) == 3


@requirement("wall.before-auth")
@encrypted
async def test_strangers_in_any_number_leave_room_for_ours(
    monkeypatch: pytest.MonkeyPatch, tls: PeerTls | None
) -> None:
    monkeypatch.setattr(replica_wire_server, "MOST_UNKNOWN", 8)
    async with guarded(tls=tls) as (pool, server, port, refused), contextlib.AsyncExitStack() as stack:
        for _ in range(40):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(b"q")
        connections = [await pool.open(f"127.0.0.1:{port}", "peer") for _ in range(4)]
        for connection in connections:
            connection.ask(b"head", b"in")
            assert await connection.next() == (b"e", b"in")
        assert len(server.connections) <= 8 + len(connections) and len(refused) >= 32
