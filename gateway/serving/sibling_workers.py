"""The workers of one parent, as they reach each other: each can send connected sockets to the others.

The parent makes an inbox for each worker, which is a pair of Unix sockets, and a table of which worker is which
replica. They have no names, and only the parent and its workers have their descriptors. The parent keeps both ends of
an inbox: what was sent to a worker that dies is received by the one that is started in its place.
docs/adr/0028-handed-over-connections.md
"""

import contextlib
import os
import socket
import struct
import tempfile
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from transports.inbound.hand_over import GIVEN, KEPT, RETURNED

__all__ = ["Inboxes", "Received", "SiblingWorkers", "inherited_siblings"]

_VARIABLE: Final = "MCP_GATEWAY_WORKER_SIBLINGS"
_ROW_BYTES: Final = 32
_MESSAGE: Final = struct.Struct("!HB")
"""Who sends a connection, and how often it has moved."""

_DESCRIPTOR_BYTES: Final = array("i").itemsize


class Inboxes:
    """In the parent: the inboxes of so many workers, and their table."""

    def __init__(self, count: int) -> None:
        with contextlib.ExitStack() as stack:
            self._table = stack.enter_context(tempfile.TemporaryFile())
            self._table.truncate(count * _ROW_BYTES)
            self._pairs: list[tuple[socket.socket, socket.socket]] = []
            for _ in range(count):
                outer, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                for end in (outer, inner):
                    stack.enter_context(end)
                    end.setblocking(False)  # for all who inherit it
                self._pairs.append((outer, inner))
            self._open = stack.pop_all()

    def for_worker(self, number: int) -> tuple[dict[str, str], list[int]]:
        """What that worker is started with: variables of its environment, and descriptors."""
        descriptors = [self._table.fileno(), self._pairs[number][1].fileno()]
        descriptors += [outer.fileno() for outer, _ in self._pairs]
        return {_VARIABLE: ",".join(map(str, [number, *descriptors]))}, descriptors

    def close(self) -> None:
        """Close all ends. Connections that nobody has received are closed as well."""
        self._open.close()


class Received(NamedTuple):
    """A connection from a sibling. `moves`: how often it has been handed over, this time included."""

    connection: socket.socket
    sender: int
    moves: int


class SiblingWorkers:
    """In a worker: the others. `counts` are by what has become of connections."""

    def __init__(
        self, number: int, table: int, inbox: socket.socket, outlets: Sequence[socket.socket], counts: Counter[str]
    ) -> None:
        self._number = number
        self._table = table
        self._outlets = outlets
        self.inbox = inbox
        self.counts = counts

    def close(self) -> None:
        """Close the descriptors of this process."""
        os.close(self._table)
        for end in (self.inbox, *self._outlets):
            end.close()

    def join(self, replica: str) -> None:
        """Tell the others which replica this worker is."""
        row = replica.encode().ljust(_ROW_BYTES, b"\0")
        assert len(row) == _ROW_BYTES, replica
        os.pwrite(self._table, row, self._number * _ROW_BYTES)

    def place_of(self, owner: str) -> int | None:
        """The number of the worker that is this replica; None: it is none of the others."""
        rows = os.pread(self._table, len(self._outlets) * _ROW_BYTES, 0)
        wanted = owner.encode().ljust(_ROW_BYTES, b"\0")
        for number in range(len(self._outlets)):
            if rows[number * _ROW_BYTES : (number + 1) * _ROW_BYTES] == wanted:
                return None if number == self._number or not owner else number
        return None

    def give(self, descriptor: int, place: int, moves: int) -> bool:
        """Send a connected socket to the worker with that number. False: it cannot have it now."""
        is_sent = self._send(descriptor, place, moves)
        self.counts[GIVEN if is_sent else KEPT] += 1
        return is_sent

    def give_back(self, received: Received, moves: int) -> bool:
        """Send a connection to the worker that it came from, as one that has moved so often. False: it stays here."""
        is_sent = self._send(received.connection.fileno(), received.sender, moves)
        if is_sent:
            received.connection.close()
            self.counts[RETURNED] += 1
        return is_sent

    def _send(self, descriptor: int, place: int, moves: int) -> bool:
        message = _MESSAGE.pack(self._number, moves)
        try:
            socket.send_fds(self._outlets[place], [message], [descriptor])
        except OSError:  # its inbox is full, or too many descriptors are on their way
            return False
        return True

    def receive(self) -> Received | None:
        """The next connection that was sent to this worker; None: there is none now."""
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
                continue  # this process has no room for one more descriptor: the connection is closed
            os.set_inheritable(descriptors[0], False)
            sender, moves = _MESSAGE.unpack(message)
            return Received(socket.socket(fileno=descriptors[0]), sender, moves)


def inherited_siblings(counts: Counter[str]) -> SiblingWorkers | None:
    """The siblings of this process, if it is a worker."""
    given = os.environ.pop(_VARIABLE, "")
    if not given:
        return None
    number, table, inbox, *outlets = map(int, given.split(","))
    for descriptor in (table, inbox, *outlets):
        os.set_inheritable(descriptor, False)
    sockets = [socket.socket(fileno=descriptor) for descriptor in (inbox, *outlets)]
    return SiblingWorkers(number, table, sockets[0], sockets[1:], counts)
