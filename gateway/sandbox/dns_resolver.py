"""Resolve names for sandboxed processes: answer the DNS queries that their programs send over TCP or in packets.

The number of streams, concurrent queries and queries per second of one process is limited, so that it does not delay
others.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final, TypeAlias

from gateway.sandbox.dns_messages import MAX_QUERY_BYTES, Outcome, Query, load, read_query
from gateway.sandbox.host_name_lookups import Lookups
from transports.upstream.walls.network_rules import NameRules
from transports.upstream.walls.wall_specification import Reach

MAX_STREAMS: Final = 32
MAX_AT_ONCE: Final = 4
"""The most concurrent look-ups of one process."""

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


class DnsResolver:
    """Answer the DNS queries of one sandboxed process. `learn` makes addresses reachable for it. `refused` is called
    with each name that the process may not resolve. `asker` returns the key by which look-ups share threads
    (`Lookups.find`)."""

    def __init__(
        self,
        reach: Reach,
        lookups: Lookups,
        *,
        learn: Learn,
        refused: Callable[[str], None],
        asker: Callable[[], Hashable],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._rules = NameRules(reach)
        self._lookups = lookups
        self._asker = asker
        self._learn = learn
        self._refused = refused
        self._clock = clock
        self._streams = 0
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._questions = _Allowance(clock)
        self._openings = _Allowance(clock)  # programs of the C library open a stream for each question
        self._is_loaded = False

    async def serve(self, client: socket.socket) -> None:
        """Answer the queries on a stream, or on a socket of packets, until it ends. Takes ownership of the socket."""
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
        """Answer queries in packets, one after the other. Programs use one socket for each query."""
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
        reply = await self.reply(query)
        if not writer.is_closing():
            writer.write(reply)

    async def reply(self, query: Query) -> bytes:
        """Return the response to one query."""
        return query.reply(*await self._outcome(query))

    async def _outcome(self, query: Query) -> tuple[Outcome, tuple[str, ...]]:
        if not self._questions.spend():
            await asyncio.sleep(_REFUSED_S)
            return "refused", ()
        if query.problem is not None:
            return query.problem, ()
        if query.name == "localhost" or query.name.endswith(".localhost"):  # RFC 6761
            return "found", _LOCALHOST
        if not self._rules.is_resolved(query.name):
            self._refused(query.name)
            return "unknown", ()
        if query.kind == "other":
            return "found", ()
        async with self._at_once:
            found = await self._lookups.find(query.name, self._asker())
        ports = self._rules.ports(query.name)
        if found.addresses and (ports is None or ports) and not self._learn(found.addresses, ports, REACHABLE_S):
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
