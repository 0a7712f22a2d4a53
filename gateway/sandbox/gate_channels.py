"""Serve the gates of sandboxed processes. A gate is a thread that decides a process's system calls
(`transports/upstream/walls/system_call_gate.py`). Over the channel of each gate, the gateway resolves host names for
the process, and receives reports of what the process touched or was refused."""

import asyncio
import contextlib
import json
import logging
import socket
import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias

import msgspec

from gateway.sandbox.dns_messages import MAX_QUERY_BYTES, LookupOutcome, Query, load, read_query
from gateway.sandbox.host_name_lookups import Lookups
from gateway.sandbox.refusal_reports import ProcessRefusals, Refusal, Refusals
from transports.background_tasks import Tasks
from transports.jsonrpc import UNREADABLE
from transports.upstream.walls.network_rules import NameRules
from transports.upstream.walls.wall_specification import Reach

logger = logging.getLogger(__name__)

_PACKET_BYTES: Final = 65_536
_MOST_AT_ONCE: Final = 16


class _Packet(msgspec.Struct, frozen=True):
    refused: tuple[Refusal, ...] = ()
    touched: tuple[tuple[str, str], ...] = ()


_packets: Final = msgspec.json.Decoder(_Packet)


class SandboxGates:
    """Serve the gates (threads that decide system calls) of all sandboxed processes of this gateway."""

    def __init__(self, refusals: Refusals, lookups: Lookups | None = None) -> None:
        self._refusals = refusals
        self._lookups = lookups or Lookups()
        self._channels: set[_Channel] = set()

    def open(self, channel: socket.socket, *, reach: Reach, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Serve the channel of the gate of a new process until the channel ends. Takes ownership of the socket. `reach`
        has the destinations that the process may connect to. `fields` returns the fields of log lines about it."""
        resolves = partial(DnsResolver, reach, self._lookups, asker=partial(_asker, fields))
        refusals = ProcessRefusals(self._refusals, fields)
        self._channels.add(_Channel(channel, resolves, refusals, ended=self._channels.discard))

    async def close(self) -> None:
        """Close all channels. Processes that still run can reach the same addresses as before, but resolve no more
        names."""
        for channel in tuple(self._channels):
            await channel.close()
        self._lookups.close()


def _asker(fields: Callable[[], Mapping[str, Any]]) -> Hashable:
    """Return the key by which a process shares the threads for look-ups with others: its server and its principal.
    `fields` returns the fields of log lines about the process. If each session had a share of its own, one principal
    could open many sessions, and their slow names would delay the names of others."""
    known = fields()
    return known.get("server"), known.get("principal")


@dataclass(eq=False, repr=False)
class _Channel:
    """The gateway's end of the channel to the gate (the thread that decides system calls) of one process."""

    channel: socket.socket
    resolves: Callable[..., "DnsResolver"]
    """Makes the resolver for the process, with the arguments `learn` and `refused`."""
    refusals: ProcessRefusals
    """Gets the refusals that the gate reports."""
    _: KW_ONLY
    ended: Callable[["_Channel"], None]
    """Called with this object when the channel has ended."""

    def __post_init__(self) -> None:
        self._tasks = Tasks("resolver")
        self._resolver = self.resolves(
            learn=self._learn, refused=lambda name: self.refusals.add(Refusal("name", name, "not listed"))
        )
        self._loop = asyncio.get_running_loop()
        self.channel.setblocking(False)
        self._loop.add_reader(self.channel.fileno(), self._read)

    async def close(self) -> None:
        self._end()
        await self._tasks.close()

    def _read(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if self.channel.fileno() < 0:
                return
            try:
                packet, descriptors, _, _ = socket.recv_fds(self.channel, _PACKET_BYTES, 4)
            except BlockingIOError:
                return
            except OSError:
                packet, descriptors = b"", []
            clients = [socket.socket(fileno=fd) for fd in descriptors]
            if not packet:
                self._end()
                self._tasks.spawn(self._tasks.close())
                return
            self._take(packet, clients)

    def _take(self, packet: bytes, clients: list[socket.socket]) -> None:
        try:
            said = _packets.decode(packet)
        except UNREADABLE as error:
            logger.error("a gate sent a packet that cannot be read: %s", error)
            said = _Packet()
        for client in clients:
            self._tasks.spawn(self._resolver.serve(client))
        for kind, what in said.touched:
            self.refusals.touched(kind, what)
        for refused in said.refused:
            self.refusals.add(refused)

    def _learn(self, addresses: tuple[str, ...], ports: frozenset[int] | None, seconds: float) -> bool:
        open_ports = None if ports is None else sorted(ports)
        packet = json.dumps({"reachable": [[address, open_ports, seconds] for address in addresses]}).encode()
        try:
            self.channel.send(packet)
        except OSError:
            return False
        return True

    def _end(self) -> None:
        if self.channel.fileno() >= 0:
            self._loop.remove_reader(self.channel.fileno())
            self.channel.close()
            self.ended(self)


MAX_STREAMS: Final = 32
MAX_AT_ONCE: Final = 4
"""The most names that are looked up concurrently for one sandboxed process."""

PER_SECOND: Final = 50.0
BURST: Final = 200.0
REACHABLE_S: Final = 300.0
"""Seconds for which a process may connect to an address in an answer. This is longer than the answer's TTL, because
programs may connect late."""

_IDLE_S: Final = 30.0
_REFUSED_S: Final = 0.1
"""Seconds until a query above the rate is refused. An immediate refusal would make programs ask again at once."""
_ORDERLY: Final = struct.pack("@ii", 0, 0)
_LOCALHOST: Final = ("127.0.0.1", "::1")


Learn: TypeAlias = Callable[[tuple[str, ...], frozenset[int] | None, float], bool]
"""A function that makes addresses reachable for the process: on the given ports (None: all), for the given seconds, and
before the process gets the answer. It returns False if that failed."""


@dataclass(eq=False, repr=False)
class DnsResolver:
    """Answer the DNS queries of one sandboxed process."""

    reach: InitVar[Reach]
    """The destinations that the process may connect to. They decide which names are resolved."""
    lookups: Lookups
    _: KW_ONLY
    learn: Learn
    """Makes the addresses in an answer reachable for the process."""
    refused: Callable[[str], None]
    """Called with each name that the process may not resolve."""
    asker: Callable[[], Hashable]
    """Returns the key by which look-ups share threads (`Lookups.find`)."""
    clock: Callable[[], float] = monotonic

    def __post_init__(self, reach: Reach) -> None:
        self._rules = NameRules(reach)
        self._streams = 0
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._questions = _Allowance(self.clock)
        self._openings = _Allowance(self.clock)  # programs of the C library open a stream for each question
        self._is_loaded = False

    async def serve(self, client: socket.socket) -> None:
        """Answer the queries that a program sends on `client`, a stream or a socket of packets, until it ends or is
        idle. Takes ownership of the socket. If the process has too many sockets, or opens them too fast, close it at
        once."""
        if self._streams >= MAX_STREAMS or not self._openings.spend():
            client.close()
            return
        self._streams += 1
        try:
            with contextlib.ExitStack() as unless_served:
                unless_served.callback(client.close)
                if not self._is_loaded:
                    await asyncio.to_thread(load)
                    self._is_loaded = True
                unless_served.pop_all()
            await (self._serve_packets if client.type == socket.SOCK_SEQPACKET else self._serve_stream)(client)
        finally:
            self._streams -= 1

    async def _serve_packets(self, client: socket.socket) -> None:
        """Answer the queries on a socket of packets, one after the other. Programs use one socket for each query."""
        loop = asyncio.get_running_loop()
        client.setblocking(False)
        with client, contextlib.suppress(OSError, TimeoutError):
            while True:
                async with asyncio.timeout(_IDLE_S):
                    query = read_query(await loop.sock_recv(client, MAX_QUERY_BYTES))
                    if query is None:  # the end, or no question: it is not read any further, as a stream
                        return
                    outcome, addresses = await self._outcome(query)
                    client.send(query.datagram(outcome, addresses))
                await asyncio.sleep(0)  # data that is there is read without a pause

    async def _serve_stream(self, client: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=2 * MAX_QUERY_BYTES)
        except BaseException:
            client.close()
            raise
        try:
            async with asyncio.TaskGroup() as answering:  # what was asked is answered, also after the last question
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                    await self._read_all(reader, writer, answering)
            if reader.at_eof():  # the program has ended it, and may still read. All other ends keep no port (the gate)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ORDERLY)
        finally:
            writer.close()

    async def _read_all(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: asyncio.TaskGroup
    ) -> None:
        at_once = asyncio.Semaphore(2 * MAX_AT_ONCE)
        while True:
            async with asyncio.timeout(_IDLE_S):
                await at_once.acquire()
                size = int.from_bytes(await reader.readexactly(2), "big")
                if size > MAX_QUERY_BYTES:
                    return
                query = read_query(await reader.readexactly(size))
                if query is None:
                    return
                await writer.drain()
            task = answering.create_task(self._answer(query, writer))
            task.add_done_callback(lambda _: at_once.release())

    async def _answer(self, query: Query, writer: asyncio.StreamWriter) -> None:
        reply = query.reply(*await self._outcome(query))
        if not writer.is_closing():
            writer.write(reply)

    async def _outcome(self, query: Query) -> tuple[LookupOutcome, tuple[str, ...]]:
        if not self._questions.spend():
            await asyncio.sleep(_REFUSED_S)
            return "refused", ()
        if query.problem is not None:
            return query.problem, ()
        if query.name == "localhost" or query.name.endswith(".localhost"):  # RFC 6761
            return "found", _LOCALHOST
        if not self._rules.is_resolved(query.name):
            self.refused(query.name)
            return "unknown", ()
        if query.kind == "other":
            return "found", ()
        async with self._at_once:
            found = await self.lookups.find(query.name, self.asker())
        ports = self._rules.ports(query.name)
        if found.addresses and (ports is None or ports) and not self.learn(found.addresses, ports, REACHABLE_S):
            return "failed", ()
        return found.outcome, found.addresses


class _Allowance:
    """A token bucket: it limits a rate to `PER_SECOND` on average, and to `BURST` at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = BURST
        self._counted_at = clock()

    def spend(self) -> bool:
        """Take one token. Return False if there is no token left."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
