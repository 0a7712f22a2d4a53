"""Stands in for the datagram sockets that a walled process does not get, as far as resolvers need them.

Programs with a resolver of their own (Go) ask over UDP. A datagram socket would send to everywhere, and no filter sees
the address of a message. So the process gets a Unix socket of packets that is connected to nothing, and has no
addresses. Connected to port 53 it becomes one end of a pair, whose other end goes to the gateway's resolver.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Final

from transports.upstream.walls.notifications import Listener, Notification
from transports.upstream.walls.socket_addresses import INTERNET, InternetAddress, read_address

__all__ = ["DNS_PORT", "StandIns"]

DNS_PORT: Final = 53
_FAMILY: Final = struct.Struct("=H")


class StandIns:
    """The stand-ins of one server. `resolve` takes a program that asks a resolver, and returns an errno or 0. `refused`
    is told of other destinations."""

    def __init__(
        self,
        listener: Listener,
        resolve: Callable[[socket.socket], int],
        refused: Callable[[InternetAddress], None],
    ) -> None:
        self._listener = listener
        self._resolve = resolve
        self._refused = refused

    def make(self, notification: Notification) -> None:
        """Answer a call of socket(2) for datagrams of the Internet."""
        kind = notification.arguments[1]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stand_in:
                stand_in.setblocking(not kind & socket.SOCK_NONBLOCK)
                closes = bool(kind & socket.SOCK_CLOEXEC)
                self._listener.give(notification, stand_in.fileno(), closes_on_exec=closes)
        except OSError as error:
            self._listener.answer(notification, error.errno or errno.EPERM)

    @staticmethod
    def is_one(theirs: socket.socket, address: bytes) -> bool:
        """True if this is a stand-in that is connected as what it stands for."""
        is_packets = theirs.family == socket.AF_UNIX and theirs.type == socket.SOCK_SEQPACKET
        return is_packets and len(address) >= _FAMILY.size and _FAMILY.unpack_from(address)[0] in INTERNET

    def connect(self, notification: Notification, theirs: socket.socket, address: bytes) -> int:
        """Connect a stand-in. An errno, or 0."""
        to = read_address(address, _FAMILY.unpack_from(address)[0])
        if not isinstance(to, InternetAddress):
            return errno.ENETUNREACH
        if to.port != DNS_PORT:
            self._refused(to)
            return errno.ENETUNREACH
        program, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with program, client:
            program.setblocking(os.get_blocking(theirs.fileno()))
            self._listener.replace(notification, program.fileno(), notification.integer(0))
            return self._resolve(client)
