"""Serve the gates of sandboxed processes: threads that decide their system calls
(`transports/upstream/walls/system_call_gate.py`). Over one channel for each gate, resolve names for the process, and
receive reports of what it touched or was refused."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from gateway.sandbox.dns_resolver import DnsResolver
from gateway.sandbox.host_name_lookups import Lookups
from gateway.sandbox.refusals import ProcessRefusals, Refusal, Refusals
from transports.background_tasks import Tasks
from transports.upstream.walls.wall_specification import Reach

logger = logging.getLogger(__name__)

_PACKET_BYTES: Final = 65_536
_MOST_AT_ONCE: Final = 16


class _Packet(msgspec.Struct, frozen=True):
    """A packet from a gate."""

    resolve: bool = False
    refused: tuple[Refusal, ...] = ()
    touched: tuple[tuple[str, str], ...] = ()


_packets: Final = msgspec.json.Decoder(_Packet)


class SandboxGates:
    """Serve the gates of all sandboxed processes of this gateway."""

    def __init__(self, refusals: Refusals, lookups: Lookups | None = None) -> None:
        self._refusals = refusals
        self._lookups = lookups or Lookups()
        self._channels: set[_Channel] = set()

    def open(self, channel: socket.socket, *, reach: Reach, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Serve the channel of a gate until the channel ends. Takes ownership of the socket."""
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
    """Return the key by which processes share the threads for look-ups: server and principal, without the session.
    Otherwise one principal could open many sessions, and their slow names would delay the names of others."""
    known = fields()
    return known.get("server"), known.get("principal")


class _Channel:
    """The gateway's end of the channel of one gate."""

    def __init__(
        self,
        channel: socket.socket,
        resolves: Callable[..., DnsResolver],
        refusals: ProcessRefusals,
        *,
        ended: Callable[["_Channel"], None],
    ) -> None:
        self._channel = channel
        self._refusals = refusals
        self._ended = ended
        self._tasks = Tasks("resolver")
        self._resolver = resolves(
            learn=self._learn, refused=lambda name: refusals.add(Refusal("name", name, "not listed"))
        )
        self._loop = asyncio.get_running_loop()
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), self._read)

    async def close(self) -> None:
        self._end()
        await self._tasks.close()

    def _read(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if self._channel.fileno() < 0:
                return
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._channel, _PACKET_BYTES, 4)
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
        except msgspec.DecodeError as error:
            logger.error("a gate sent a packet that cannot be read: %s", error)
            said = _Packet()
        for client in clients:
            self._tasks.spawn(self._resolver.serve(client))
        for kind, what in said.touched:
            self._refusals.touched(kind, what)
        for refused in said.refused:
            self._refusals.add(refused)

    def _learn(self, addresses: tuple[str, ...], ports: frozenset[int] | None, seconds: float) -> bool:
        open_ports = None if ports is None else sorted(ports)
        packet = json.dumps({"reachable": [[address, open_ports, seconds] for address in addresses]}).encode()
        try:
            self._channel.send(packet)
        except OSError:
            return False
        return True

    def _end(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._ended(self)
