"""Decide and make connect(2) and listen(2) for a walled process.

The address is copied from the process, and the socket is a duplicate: nothing that the process changes during the
decision has an effect. A connection to port 53 of any address is made to a new socket on loopback instead, whose
accepted end is given to the gateway's resolver. So a program keeps the socket that it has made, with all options, and
both of its ends have an Internet address, as resolver libraries require.

Programs with a resolver of their own (Go) ask over UDP. A datagram socket could send anywhere: no filter sees the
address of a message. So these programs get a *stand-in*: an unconnected Unix socket of packets, which has no addresses.
When it is connected to port 53, it is replaced by one end of a pair. The other end goes to the gateway's resolver.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from transports.upstream.walls.gate_reports import Refused
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener, duplicate, read_memory
from transports.upstream.walls.network_rules import Address, ReachRules, kind_of, shown, unwrapped
from transports.upstream.walls.pending_connections import PendingConnections, connect
from transports.upstream.walls.raw_system_calls import closing_fd, numbers
from transports.upstream.walls.resolved_paths import is_within, open_path, resolved
from transports.upstream.walls.socket_addresses import (
    INTERNET,
    MAX_BYTES,
    AbstractName,
    Disconnect,
    InternetAddress,
    UnixPath,
    listeners,
    read_address,
)
from transports.upstream.walls.wall_specification import Reach

DNS_PORT: Final = 53
_FAMILY: Final = struct.Struct("=H")
_KIND: Final = 0xF  # of socket(2)'s second argument, without flags
_ACCEPT_S: Final = 0.5
_MAX_OWN_LISTENERS: Final = 64
_QUIET: Final = ("/run/nscd/socket", "/var/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve")
"""Sockets whose refusal is not reported, because the C library tries them before it asks a DNS resolver."""

_RESETS: Final = struct.pack("@ii", 1, 0)  # struct linger: close(2) ends the connection at once
_DISCONNECT: Final = struct.pack("=H14x", socket.AF_UNSPEC)


class NetworkCalls:
    """Decide and answer the network calls of one sandboxed server.

    `rules` decide which addresses it may connect to; `reach` has the Unix sockets and the ports. `refused` is called
    with each refusal. `resolve` gets the socket of a program that asks a resolver, and returns an errno or 0. If
    `touched` is given, connections are not refused: instead, `touched` is called with each address, Unix socket and
    port. `kernel_binds`: if the kernel may choose a port for the server, the kernel also refuses to bind ports that are
    not granted.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        listener: Listener,
        connections: PendingConnections,
        rules: ReachRules,
        refused: Refused,
        resolve: Callable[[socket.socket], int],
        touched: Callable[[str, str], None] | None,
        kernel_binds: bool,
    ) -> None:
        self._touched = touched
        self._kernel_binds = kernel_binds and touched is None and 0 in reach.listen
        self._sockets = reach.sockets
        self._ports = reach.listen
        self._listener = listener
        self._connections = connections
        self._rules = rules
        self._refused = refused
        self._resolve = resolve
        self._own_listeners: dict[int, None] = {}  # inodes, the oldest first
        calls = numbers()
        self._socket, self._bind = calls["socket"], calls["bind"]
        self._handlers = {calls["connect"]: self._connect, calls["listen"]: self._listen}

    def decide(self, made: InterceptedCall) -> None:
        """Decide on a system call, and answer it now or when its connection has been made. No error ends the gate."""
        if made.number == self._socket:
            self._make(made)
            return
        if made.number == self._bind:
            self._tell_of_bind(made)
            self._listener.proceed(made)
            return
        error: int | None = errno.EACCES
        try:
            with contextlib.ExitStack() as unless_kept:
                theirs = self._theirs(made)
                unless_kept.callback(theirs.close)
                if not self._listener.is_valid(made):  # the thread's id may mean another one by now
                    return
                error = self._handlers[made.number](made, theirs)
                if error is None:
                    unless_kept.pop_all()
        except OSError as failed:
            error = failed.errno or errno.EACCES
        except (ValueError, LookupError):
            error = errno.EACCES
        if error is not None:
            self._listener.answer(made, error)

    def _tell_of_bind(self, made: InterceptedCall) -> None:
        """Look at a bind(2). If the kernel is about to refuse the port, report this as a refusal, because the kernel
        itself does not report it."""
        if not self._kernel_binds:
            return
        _, pointer, size, *_ = made.arguments
        with contextlib.suppress(OSError, ValueError, LookupError), self._theirs(made) as theirs:
            raw = read_memory(made.thread, pointer, min(size & 0xFFFF_FFFF, MAX_BYTES))
            given = read_address(raw, theirs.family)
            if theirs.type != socket.SOCK_STREAM or not isinstance(given, InternetAddress):
                return
            if given.port not in self._ports and self._listener.is_valid(made):
                self._refused("listen", str(given.port), "not granted")

    def _make(self, made: InterceptedCall) -> None:
        """Make a socket in the machine's network for a process that has left this network, or a stand-in for Internet
        datagrams. The filter announces only the kinds of sockets for which that is allowed."""
        family, kind, protocol = (made.integer(place) for place in range(3))
        given = (family, kind, protocol)
        if kind & _KIND == socket.SOCK_DGRAM and family in INTERNET:
            given = (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0)
        try:
            with socket.socket(*given) as ours:
                ours.setblocking(not kind & socket.SOCK_NONBLOCK)
                self._listener.give(made, ours.fileno(), closes_on_exec=bool(kind & socket.SOCK_CLOEXEC))
        except OSError as error:
            self._listener.answer(made, error.errno or errno.EPERM)

    @staticmethod
    def _theirs(made: InterceptedCall) -> socket.socket:
        ours = duplicate(made.thread, made.arguments[0])
        try:
            return socket.socket(fileno=ours)
        except OSError:  # ENOTSOCK
            os.close(ours)
            raise

    def _connect(self, made: InterceptedCall, theirs: socket.socket) -> int | None:
        """Decide on a connect(2) of the socket `theirs`, a duplicate of the process's one. Return the errno of the call
        (0: success), or None if the connection is being made, and the call is answered later."""
        _, pointer, size, *_ = made.arguments
        size &= 0xFFFF_FFFF
        if size > MAX_BYTES:
            return errno.EINVAL
        raw = read_memory(made.thread, pointer, size)
        # A stand-in that is being connected to an Internet address:
        is_packets = theirs.family == socket.AF_UNIX and theirs.type == socket.SOCK_SEQPACKET
        if is_packets and len(raw) >= _FAMILY.size and _FAMILY.unpack_from(raw)[0] in INTERNET:
            return self._connect_stand_in(made, theirs, raw) if self._listener.is_valid(made) else errno.ESRCH
        given = read_address(raw, theirs.family)
        if isinstance(given, AbstractName):
            self._refused("socket", f"@{given.name}", "an abstract name")
            return errno.EACCES
        path = resolved(given.path, made.thread) if isinstance(given, UnixPath) else ""
        if not self._listener.is_valid(made):  # the path may be that of another thread
            return errno.ESRCH
        if isinstance(given, UnixPath):
            return self._connect_unix(made, theirs, given.path, path)
        if theirs.type != socket.SOCK_STREAM or theirs.proto != socket.IPPROTO_TCP:
            return errno.EACCES
        if isinstance(given, Disconnect):
            return connect(theirs.fileno(), _DISCONNECT)
        return self._connect_internet(made, theirs, given)

    def _connect_internet(self, made: InterceptedCall, theirs: socket.socket, to: InternetAddress) -> int | None:
        if to.port == DNS_PORT:
            self._connections.make(made, theirs, lambda: self._connect_resolver(theirs))
            return None
        final = unwrapped(to.address)
        own: set[int] = set()
        if self._touched is not None:
            self._touched("connect", shown(final, to.port))
        elif (why := self._rules.refusal(to.address, to.port)) is not None:
            own = self._own(final, to.port)
            if not own:
                self._refused("connect", shown(final, to.port), why)
                return errno.EACCES
        self._connections.make(made, theirs, lambda: self._attempt(theirs, to, own))
        return None

    def _attempt(self, theirs: socket.socket, to: InternetAddress, own: set[int]) -> int:
        error = connect(theirs.fileno(), to.raw)
        if own and error in (0, errno.EINPROGRESS) and self._own(unwrapped(to.address), to.port) != own:
            connect(theirs.fileno(), _DISCONNECT)  # another process has taken the port in between
            return errno.ECONNREFUSED
        return error

    def _own(self, address: Address, port: int) -> set[int]:
        """Return the inodes of the sockets of this server that listen on a loopback address and port; empty if another
        process listens there, too, or if the address is no loopback address."""
        if not self._own_listeners or kind_of(address)[0] != "loopback":
            return set()
        found = listeners(address, port)
        return found if found <= self._own_listeners.keys() else set()

    def _connect_resolver(self, theirs: socket.socket) -> int:
        """Connect the program's socket to one of ours on loopback, and give the accepted end to the gateway's resolver.
        Return an errno, or 0."""
        with socket.socket(theirs.family) as meeting:
            meeting.bind(("127.0.0.1" if theirs.family == socket.AF_INET else "::1", 0))
            meeting.listen(1)
            until = time.monotonic() + _ACCEPT_S
            error = connect(theirs.fileno(), _raw(meeting.getsockname(), theirs.family))
            if error not in (0, errno.EINPROGRESS):
                return error
            try:
                while True:  # a stranger that finds the port is not let in, and adds no time
                    meeting.settimeout(max(0.001, until - time.monotonic()))
                    client, peer = meeting.accept()
                    with client:
                        # Without a reset, the side that closes first keeps a port of the machine for a minute.
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                        if peer == theirs.getsockname():
                            return self._resolve(client) or error
                    if time.monotonic() > until:
                        return errno.ECONNREFUSED
            except OSError:
                return errno.ECONNREFUSED

    def _connect_stand_in(self, made: InterceptedCall, theirs: socket.socket, address: bytes) -> int:
        """Connect a stand-in to the resolver, or refuse it. Return an errno, or 0.

        Refused datagrams are not reported where TCP is allowed: the C library connects a datagram socket to each
        address of a name to learn the route, and sends nothing.
        """
        to = read_address(address, _FAMILY.unpack_from(address)[0])
        if not isinstance(to, InternetAddress):
            return errno.ENETUNREACH
        if to.port != DNS_PORT:
            if self._touched is None and to.port and self._rules.refusal(to.address, to.port) is not None:
                self._refused("connect", f"udp {shown(unwrapped(to.address), to.port)}", "datagrams")
            return errno.ENETUNREACH
        program, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with program, client:
            program.setblocking(os.get_blocking(theirs.fileno()))
            self._listener.replace(made, program.fileno(), made.integer(0))
            return self._resolve(client)

    def _connect_unix(self, made: InterceptedCall, theirs: socket.socket, given: str, path: str) -> int | None:
        if theirs.type not in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            return errno.EACCES
        if self._touched is not None and given not in _QUIET:
            self._touched("socket", path)
        elif not is_within(path, self._sockets):
            if given in _QUIET:
                return errno.ENOENT
            self._refused("socket", path, "not granted")
            return errno.EACCES
        self._connections.make(made, theirs, lambda: _attempt_unix(theirs, path))
        return None

    def _listen(self, made: InterceptedCall, theirs: socket.socket) -> int:
        backlog = made.arguments[1] & 0xFFFF
        place = theirs.getsockname()[:2] if theirs.family in INTERNET else None
        if place is not None:
            address, port = place
            is_loopback = kind_of(ipaddress.ip_address(address))[0] == "loopback"
            if self._touched is not None:
                self._touched("listen", f"{address} {port}")
            elif not port or (port not in self._ports and not (is_loopback and 0 in self._ports)):
                self._refused("listen", str(port), "not granted")
                return errno.EACCES
        elif theirs.family != socket.AF_UNIX:
            return errno.EACCES
        theirs.listen(backlog)
        if self._touched is None and place is not None and theirs.getsockname()[:2] != place:
            # A thread has bound the socket to another address during the check.
            theirs.shutdown(socket.SHUT_RDWR)
            self._refused("listen", str(place[1]), "bound to another address meanwhile")
            return errno.EACCES
        self._own_listeners[os.fstat(theirs.fileno()).st_ino] = None
        if len(self._own_listeners) > _MAX_OWN_LISTENERS:
            del self._own_listeners[next(iter(self._own_listeners))]
        return 0


def _attempt_unix(theirs: socket.socket, path: str) -> int:
    """Connect to the Unix socket at a path. Open the path first, and connect through the descriptor: a moment later,
    the path may name another file. Return an errno, or 0."""
    try:
        named = open_path(path)
    except OSError as error:  # ELOOP: there is a link by now
        return errno.EACCES if error.errno == errno.ELOOP else error.errno or errno.EACCES
    with closing_fd(named):
        at = struct.pack("=H", socket.AF_UNIX) + f"/proc/self/fd/{named}".encode() + b"\0"
        return connect(theirs.fileno(), at)


def _raw(name: tuple[str, int], family: int) -> bytes:
    head = struct.pack("=H", family) + struct.pack("!H", name[1])
    if family == socket.AF_INET:
        return head + socket.inet_pton(family, name[0]) + bytes(8)
    return head + bytes(4) + socket.inet_pton(family, name[0]) + bytes(4)
