"""The resolver of one walled process, and whose turns the names of many take."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic

import dns.message
import pytest

from gateway.sandbox.gate_channels import BURST, MAX_STREAMS, REACHABLE_S, DnsResolver, SandboxGates
from gateway.sandbox.host_name_lookups import MAX_THREADS, Lookups
from gateway.sandbox.refusal_reports import Refusals, SessionRefusals
from tests.requirements import requirement
from transports.upstream.walls.wall_specification import Reach

pytestmark = requirement("box.names")


def asked(gates: SandboxGates, opened: contextlib.ExitStack, principal: str, name: str) -> socket.socket:
    """Have a new session of a principal ask for a name. Returns where the answer arrives."""
    gate, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened.enter_context(gate)
    opened.enter_context(program)
    fields = {"server": "files", "principal": principal, "session": f"{principal} {name}"}
    gates.open(channel, reach=Reach(names=True), fields=lambda: fields)
    with client:
        socket.send_fds(gate, [b'{"resolve": true}'], [client.fileno()])
    program.setblocking(False)
    program.send(dns.message.make_query(name, "A").to_wire())
    return program


async def test_slow_names_of_many_sessions_of_a_principal_do_not_hold_up_others() -> None:
    name_server_answers = threading.Event()

    def resolve(name: str) -> list[str]:
        if name.startswith("slow"):
            name_server_answers.wait(30)
        return ["93.184.216.34"]

    async def answer(program: socket.socket) -> dns.message.Message:
        receiving = asyncio.get_running_loop().sock_recv(program, 4096)
        return dns.message.from_wire(await asyncio.wait_for(receiving, 60))

    refusals = Refusals(Counter(), lambda **_: None, monotonic, SessionRefusals(monotonic))
    gates = SandboxGates(refusals, Lookups(resolve))
    try:
        with contextlib.ExitStack() as opened:
            waiting = [asked(gates, opened, "mallory", f"slow{n}.test") for n in range(MAX_THREADS + 16)]
            reply = await answer(asked(gates, opened, "ann", "quick.test"))
            assert [str(record[0]) for record in reply.answer] == ["93.184.216.34"]
            name_server_answers.set()
            for each in waiting:
                assert await answer(each)
    finally:
        name_server_answers.set()
        await gates.close()


FOUND = (0, ["93.184.216.34"])


def framed(query: dns.message.Message) -> bytes:
    wire = query.to_wire()
    return len(wire).to_bytes(2, "big") + wire


async def reply_in(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))


class Served:
    """A resolver with its clients."""

    def __init__(self, reach: Reach) -> None:
        self.learnt: list[tuple[tuple[str, ...], frozenset[int] | None]] = []
        self.refused: list[str] = []
        self.heard = True
        self.now = 0.0
        self.resolver = DnsResolver(
            reach,
            Lookups(lambda _: ["93.184.216.34"]),
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
            await asyncio.wait_for(serving, 60)

    async def ask(self, *names: str, kind: str = "A") -> list[tuple[int, list[str]]]:
        """The response codes and records of the answers, in the order of the names."""
        replies = {}
        async with self.client() as (reader, writer):
            for number, name in enumerate(names):
                writer.write(framed(dns.message.make_query(name, kind, id=number)))
            writer.write_eof()
            for _ in names:
                reply = dns.message.from_wire(await reply_in(reader))
                replies[reply.id] = (int(reply.rcode()), [str(record) for answer in reply.answer for record in answer])
        return [replies[number] for number in range(len(names))]


@pytest.fixture
def served() -> Served:
    """It may ask for every name."""
    return Served(Reach(public=True, names=True))


async def test_listed_names_are_resolved_and_their_addresses_announced_before_the_answer() -> None:
    served = Served(Reach(hosts=("api.test:443", "*.example.test", "10.0.0.0/8")))
    answers = await served.ask("api.test", "a.example.test", "example.test", "other.test", "localhost")
    assert answers == [FOUND, FOUND, (3, []), (3, []), (0, ["127.0.0.1"])]
    assert len(served.learnt) == 2
    assert {*served.learnt} == {(("93.184.216.34",), frozenset({443})), (("93.184.216.34",), None)}
    assert sorted(served.refused) == ["example.test", "other.test"]
    for kind in ("AAAA", "TXT"):
        assert await served.ask("api.test", kind=kind) == [(0, [])]
    served.heard = False
    assert await served.ask("api.test") == [(2, [])], "an address that is not reachable is not answered"


async def test_questions_per_second_and_streams_are_bounded(served: Served) -> None:
    codes = [code for code, _ in await served.ask(*["a.test"] * (int(BURST) + 30))]
    assert codes.count(0) == BURST and codes.count(5) == 30
    assert not served.learnt and not served.refused, "every name may be asked for"
    served.now += 1.0
    assert await served.ask("a.test") == [FOUND]
    async with contextlib.AsyncExitStack() as clients:
        for _ in range(MAX_STREAMS):
            await clients.enter_async_context(served.client())
        await asyncio.sleep(0)
        async with served.client() as (reader, _):
            assert await reader.read() == b""
    assert await served.ask("a.test") == [FOUND]


async def test_what_is_no_question_costs_as_much_as_one_and_ends_a_socket_of_packets(served: Served) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    serving = asyncio.ensure_future(served.resolver.serve(theirs))
    with ours:
        ours.send(dns.message.make_query("a.test", "A").to_wire())
        loop = asyncio.get_running_loop()
        assert dns.message.from_wire(await loop.sock_recv(ours, 4_096)).answer
        ours.send(b"junk")
        await asyncio.wait_for(serving, 60)
        assert await loop.sock_recv(ours, 4_096) == b""
    odd = dns.message.make_query("a.test", "A", rdclass="CH")
    async with served.client() as (reader, writer):
        for _ in range(int(BURST)):
            writer.write(framed(odd))
            await reply_in(reader)
    assert await served.ask("a.test") == [(5, [])], "questions with a fault are counted"


@pytest.mark.parametrize("sent", [b"\xff\xff" + b"x" * 100, b"\0\5hello", b"\0\0", b"\0"])
async def test_who_is_no_client_of_a_resolver_is_disconnected(served: Served, sent: bytes) -> None:
    async with served.client() as (reader, writer):
        writer.write(sent)
        if len(sent) == 1:
            writer.write_eof()
        assert await reader.read() == b""


@contextlib.asynccontextmanager
async def connected(resolver: DnsResolver) -> AsyncIterator[socket.socket]:
    """A program's end of a TCP connection whose other end is as the gate leaves it: closing resets it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as program:
        program.connect(listener.getsockname())
        program.setblocking(False)
        client, _ = listener.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
        serving = asyncio.ensure_future(resolver.serve(client))
        yield program
        await asyncio.wait_for(serving, 60)


async def test_streams_per_second_are_bounded_and_one_keeps_no_port_if_the_resolver_ends_it_before_its_program(
    served: Served,
) -> None:
    loop = asyncio.get_running_loop()
    async with connected(served.resolver) as program:
        program.send(b"\xff\xff")  # longer than any question
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(program, 1), 60)
    async with connected(served.resolver) as program:
        program.send(framed(dns.message.make_query("api.test", "A")))
        program.shutdown(socket.SHUT_WR)
        found = b""
        while piece := await asyncio.wait_for(loop.sock_recv(program, 4_096), 60):
            found += piece
    assert int.from_bytes(found[:2], "big") == len(found) - 2, "it is read to its end"
    for _ in range(int(BURST)):
        async with served.client():
            pass
    async with connected(served.resolver) as program:  # one too many
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(program, 1), 60)
    served.now += 1.0
    assert await served.ask("a.test") == [FOUND]
