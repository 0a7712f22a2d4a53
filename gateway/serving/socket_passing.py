"""Send connected sockets between the workers of one parent (docs/adr/0028-handed-over-connections.md).

The parent makes an inbox for each worker (a pair of Unix sockets), and a table that says which worker is which replica.
Inboxes and table have no names: only the parent and its workers have their descriptors. The parent keeps both ends of
each inbox. So the worker that replaces a dead one receives what was sent to the dead one.
"""

import contextlib
import os
import socket
import struct
import tempfile
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from transports.inbound.connection_handover import GIVEN, KEPT, RETURNED

_VARIABLE: Final = "MCP_GATEWAY_WORKER_SIBLINGS"
_ROW_BYTES: Final = 32
_MESSAGE: Final = struct.Struct("!HB")
"""The message that is sent with a socket: the sender's number, and how often the connection was handed over."""

_DESCRIPTOR_BYTES: Final = array("i").itemsize


class Inboxes:
    """The inboxes (pairs of sockets) of `count` workers, and the table of their replicas. The parent makes them."""

    def __init__(self, count: int) -> None:
        with contextlib.ExitStack() as stack:
            self._table = stack.enter_context(tempfile.TemporaryFile())
            self._table.truncate(count * _ROW_BYTES)
            self._pairs: list[tuple[socket.socket, socket.socket]] = []
            for _ in range(count):
                outer, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                for end in (outer, inner):
                    stack.enter_context(end)
                    end.setblocking(False)  # also for the processes that inherit it
                self._pairs.append((outer, inner))
            self._open = stack.pop_all()

    def for_worker(self, number: int) -> tuple[dict[str, str], list[int]]:
        """Return the environment variables and the descriptors with which the parent has to start the worker with the
        number `number`."""
        descriptors = [self._table.fileno(), self._pairs[number][1].fileno()]
        descriptors += [outer.fileno() for outer, _ in self._pairs]
        return {_VARIABLE: ",".join(map(str, [number, *descriptors]))}, descriptors

    def close(self) -> None:
        """Close the inboxes and the table. Connections in an inbox are closed, too."""
        self._open.close()


class Received(NamedTuple):
    """A connection that another worker has handed over to this one."""

    connection: socket.socket
    sender: int
    """The number of the worker that has sent it."""
    moves: int
    """How often the connection was handed over, this time included."""


@dataclass(eq=False, repr=False)
class SiblingWorkers:
    """Send connections from this worker to the other workers, and receive theirs."""

    number: int
    """This worker's number."""
    table: int
    """The descriptor of the table that says which worker is which replica."""
    inbox: socket.socket
    outlets: Sequence[socket.socket]
    """The sockets by which to send to each worker's inbox, in the order of the workers' numbers."""
    counts: Counter[str]
    """The number of connections that were handed over, by outcome."""

    def close(self) -> None:
        """Close this worker's descriptors of the inboxes and the table."""
        os.close(self.table)
        for end in (self.inbox, *self.outlets):
            end.close()

    def join(self, replica: str) -> None:
        """Write into the table that this worker is the replica `replica`, so that the others find it (`place_of`)."""
        row = replica.encode().ljust(_ROW_BYTES, b"\0")
        assert len(row) == _ROW_BYTES, replica
        os.pwrite(self.table, row, self.number * _ROW_BYTES)

    def place_of(self, owner: str) -> int | None:
        """Return the number of the worker that is the replica `owner`. Return None if that is this worker, or no worker
        of this parent."""
        rows = os.pread(self.table, len(self.outlets) * _ROW_BYTES, 0)
        wanted = owner.encode().ljust(_ROW_BYTES, b"\0")
        for number in range(len(self.outlets)):
            if rows[number * _ROW_BYTES : (number + 1) * _ROW_BYTES] == wanted:
                return None if number == self.number or not owner else number
        return None

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        """Send a connected socket to the worker with the number `place`. `moves`: how often its connection was handed
        over, this time included. Return False if that worker's inbox is full, so that the caller keeps the socket."""
        is_sent = self._send(descriptor, place, moves)
        self.counts[GIVEN if is_sent else KEPT] += 1
        return is_sent

    def give_back(self, received: Received, moves: int) -> bool:
        """Send a connection back to its sender, and close it in this process. `moves`: how often it was handed over, as
        the sender is told. Return False if the sender's inbox is full: the connection then stays open here."""
        is_sent = self._send(received.connection.fileno(), received.sender, moves)
        if is_sent:
            received.connection.close()
            self.counts[RETURNED] += 1
        return is_sent

    def _send(self, descriptor: int, place: int, moves: int) -> bool:
        message = _MESSAGE.pack(self.number, moves)
        try:
            socket.send_fds(self.outlets[place], [message], [descriptor])
        except OSError:  # its inbox is full, or too many descriptors are on their way
            return False
        return True

    def receive(self) -> Received | None:
        """Return the next connection in this worker's inbox; None if the inbox is empty."""
        while True:
            try:
                # `socket.recv_fds` ignores its flags (CPython 3.11 to 3.13): servers would inherit the connection.
                message, ancillary, _, _ = self.inbox.recvmsg(
                    _MESSAGE.size, socket.CMSG_LEN(_DESCRIPTOR_BYTES), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
                )
            except BlockingIOError:
                return None
            descriptors = array("i")
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
            if not descriptors:
                continue  # this process has too many open descriptors: the kernel closed the connection
            os.set_inheritable(descriptors[0], False)
            sender, moves = _MESSAGE.unpack(message)
            return Received(socket.socket(fileno=descriptors[0]), sender, moves)


def inherited_siblings(counts: Counter[str]) -> SiblingWorkers | None:
    """Return the object by which this worker reaches the other workers. It is built from an environment variable that
    the parent has set. Return None if this process is not a worker."""
    given = os.environ.pop(_VARIABLE, "")
    if not given:
        return None
    number, table, inbox, *outlets = map(int, given.split(","))
    for descriptor in (table, inbox, *outlets):
        os.set_inheritable(descriptor, False)
    sockets = [socket.socket(fileno=descriptor) for descriptor in (inbox, *outlets)]
    return SiblingWorkers(number, table, sockets[0], sockets[1:], counts)
