"""The resolver of one walled process."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import dns.message
import pytest

from gateway.sandbox.lookups import Lookups
from gateway.sandbox.resolver import BURST, MAX_STREAMS, REACHABLE_S, SessionResolver
from tests.requirements import requirement
from transports.upstream.walls.spec import Reach

pytestmark = [pytest.mark.anyio, requirement("box.names")]
Learnt = list[tuple[tuple[str, ...], frozenset[int] | None]]


class Served:
    """A resolver with its clients."""

    def __init__(self, reach: Reach, addresses: tuple[str, ...] = ("93.184.216.34",)) -> None:
        self.learnt: Learnt = []
        self.refused: list[str] = []
        self.heard = True
        self.now = 0.0
        self.resolver = SessionResolver(
            reach,
            Lookups(lambda _: list(addresses)),
            learn=self._learn,
            refused=self.refused.append,
            asker=lambda: None,
            clock=lambda: self.now,
        )

    def _learn(self, addresses: tuple[str, ...], ports: frozenset[int] | None, seconds: float) -> bool:
        assert seconds == REACHABLE_S
        self.learnt.append((addresses, ports))
        return self.heard

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        ours, theirs = socket.socketpair()
        serving = asyncio.ensure_future(self.resolver.serve(theirs))
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            yield reader, writer
        finally:
            writer.close()
            await asyncio.wait_for(serving, 10)

    async def ask(self, *names: str, kind: str = "A") -> list[tuple[int, list[str]]]:
        """The response codes and records of the answers, in the order of the names."""
        queries = {
            query.id: query for query in (dns.message.make_query(name, kind, id=n) for n, name in enumerate(names))
        }
        async with self.client() as (reader, writer):
            for query in queries.values():
                wire = query.to_wire()
                writer.write(len(wire).to_bytes(2, "big") + wire)
            writer.write_eof()
            replies = {}
            for _ in names:
                size = int.from_bytes(await reader.readexactly(2), "big")
                reply = dns.message.from_wire(await reader.readexactly(size))
                replies[reply.id] = (int(reply.rcode()), [str(record) for answer in reply.answer for record in answer])
        return [replies[number] for number in range(len(names))]


async def test_listed_names_are_resolved_and_their_addresses_announced_before_the_answer() -> None:
    served = Served(Reach(hosts=("api.test:443", "*.example.test", "10.0.0.0/8")))
    answers = await served.ask("api.test", "a.example.test", "example.test", "other.test", "localhost")
    assert answers == [(0, ["93.184.216.34"]), (0, ["93.184.216.34"]), (3, []), (3, []), (0, ["127.0.0.1"])]
    assert sorted(served.learnt, key=str) == sorted(
        [(("93.184.216.34",), frozenset({443})), (("93.184.216.34",), None)], key=str
    )
    assert sorted(served.refused) == ["example.test", "other.test"]
    assert await served.ask("api.test", kind="AAAA") == [(0, [])] and await served.ask("api.test", kind="TXT") == [
        (0, [])
    ]
    served.heard = False
    assert await served.ask("api.test") == [(2, [])], "an address that is not reachable is not answered"


async def test_every_name_is_resolved_where_names_are_open() -> None:
    served = Served(Reach(public=True, names=True))
    assert await served.ask("a.test", "b.test") == [(0, ["93.184.216.34"])] * 2
    assert not served.learnt and not served.refused


async def test_questions_per_second_and_streams_are_bounded() -> None:
    served = Served(Reach(names=True))
    codes = [code for code, _ in await served.ask(*["a.test"] * (int(BURST) + 30))]
    assert codes.count(0) == BURST and codes.count(5) == 30
    served.now += 1.0
    assert await served.ask("a.test") == [(0, ["93.184.216.34"])]
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(MAX_STREAMS):
            await clients.enter_async_context(served.client())
        await asyncio.sleep(0)
        async with served.client() as (reader, _):
            assert await reader.read() == b""
    assert await served.ask("a.test") == [(0, ["93.184.216.34"])]


async def test_what_is_no_question_costs_as_much_as_one_and_ends_a_socket_of_packets() -> None:
    served = Served(Reach(names=True))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    serving = asyncio.ensure_future(served.resolver.serve(theirs))
    with ours:
        wire = dns.message.make_query("a.test", "A").to_wire()
        ours.send(wire)
        loop = asyncio.get_running_loop()
        assert dns.message.from_wire(await loop.sock_recv(ours, 4_096)).answer
        ours.send(b"junk")
        await asyncio.wait_for(serving, 10)
        assert await loop.sock_recv(ours, 4_096) == b""
    odd = dns.message.make_query("a.test", "A", rdclass="CH").to_wire()
    async with served.client() as (reader, writer):
        for _ in range(int(BURST)):
            writer.write(len(odd).to_bytes(2, "big") + odd)
            await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
    assert await served.ask("a.test") == [(5, [])], "questions with a fault are counted"


@pytest.mark.parametrize("sent", [b"\xff\xff" + b"x" * 100, b"\0\5hello", b"\0\0", b"\0"])
async def test_who_is_no_client_of_a_resolver_is_disconnected(sent: bytes) -> None:
    served = Served(Reach(names=True))
    async with served.client() as (reader, writer):
        writer.write(sent)
        if len(sent) == 1:
            writer.write_eof()
        assert await reader.read() == b""


@contextlib.asynccontextmanager
async def connected(resolver: SessionResolver) -> AsyncIterator[socket.socket]:
    """A program's end of a TCP connection whose other end is as the gate leaves it: closing resets it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as program:
        program.connect(listener.getsockname())
        program.setblocking(False)
        client, _ = listener.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
        serving = asyncio.ensure_future(resolver.serve(client))
        yield program
        await asyncio.wait_for(serving, 10)


async def test_streams_per_second_are_bounded_and_one_that_the_resolver_ends_keeps_no_port() -> None:
    served, loop = Served(Reach(names=True)), asyncio.get_running_loop()
    async with connected(served.resolver) as program:
        program.send(b"\xff\xff")  # longer than any question
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(program, 1), 10)
    for _ in range(int(BURST)):
        async with served.client():
            pass
    async with connected(served.resolver) as program:  # one too many
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(program, 1), 10)
    served.now += 1.0
    assert await served.ask("a.test") == [(0, ["93.184.216.34"])]


async def test_a_stream_that_its_program_ends_is_read_to_its_end() -> None:
    served, loop = Served(Reach(names=True)), asyncio.get_running_loop()
    wire = dns.message.make_query("api.test", "A").to_wire()
    async with connected(served.resolver) as program:
        program.send(len(wire).to_bytes(2, "big") + wire)
        program.shutdown(socket.SHUT_WR)
        found = b""
        while piece := await asyncio.wait_for(loop.sock_recv(program, 4_096), 10):
            found += piece
    assert int.from_bytes(found[:2], "big") == len(found) - 2
