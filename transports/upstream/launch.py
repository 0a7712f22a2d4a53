"""How a process that becomes a server tells its reaper of it. For `fork_server.py`.

On a pair of sockets that exec(2) closes, the process writes lines: `pid N`, its number outside of its namespaces, if it
has some; `listener N`, the descriptor on which its filter announces calls, after which it waits until the reaper has
taken that; and `failed SENTENCE`. The end without a failure means that the server runs.

The reaper takes the listener by its number (pidfd_getfd). As a message it could be held up: the kernel counts the
descriptors on their way through sockets for a whole user, and any server of that user can fill the count.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

from transports.upstream.walls.notifications import duplicate_from, open_process
from transports.upstream.walls.system_calls import dumpable

__all__ = ["MOST_BYTES", "Launch", "hand_over", "report_failure", "report_number"]

MOST_BYTES: Final = 4_000
"""Of the sentence that says why a start has failed."""


def report_number(report: socket.socket, outer: int) -> None:
    """Say which number this process has in the gateway's /proc, which `outer` is a descriptor of."""
    report.send(b"pid %s\n" % os.readlink("self", dir_fd=outer).encode())


def report_failure(report: int, sentence: str) -> None:
    """Say why there will be no server."""
    os.write(report, b"failed " + sentence.replace("\n", " ").encode(errors="replace")[:MOST_BYTES])


def hand_over(report: int, listener: int) -> None:
    """Let the reaper take a descriptor of this process, and close it. Ends this process if the reaper does not."""
    # Nothing is secret in this process that will not be in the server itself.
    with dumpable():
        os.write(report, b"listener %d\n" % listener)
        if not os.read(report, 1):
            os._exit(127)
    os.close(listener)


class Launch:
    """The reaper's end. `pid` is the number of the process here, `take_listener` gets that of its filter: None if it
    has none."""

    def __init__(self, reports: socket.socket, pid: int, take_listener: Callable[[int], None] | None) -> None:
        self.outer_pid = pid
        self.failure = ""
        self._reports = reports
        self._take_listener = take_listener
        # Opened while the process builds its walls: it waits for what comes after.
        self._process = None if take_listener is None or not pid else open_process(pid)
        self._line = b""

    def fileno(self) -> int:
        return self._reports.fileno()

    def read(self) -> bool:
        """Take what the process has written, or wait for it. False at the end: exec(2) is done, or has failed."""
        with contextlib.suppress(OSError):
            if received := self._reports.recv(MOST_BYTES):
                *lines, self._line = (self._line + received).split(b"\n")
                for line in lines:
                    self._take(line)
                if not self.failure:
                    return True
        self._take(self._line)
        self._reports.close()
        if self._process is not None:
            os.close(self._process)
        return False

    def _take(self, line: bytes) -> None:
        what, _, value = line.partition(b" ")
        if what == b"failed":
            self.failure = value.decode(errors="replace")
        elif what == b"pid":
            self.outer_pid = int(value)
        elif what == b"listener" and self._process is not None and self._take_listener is not None:
            try:
                taken = duplicate_from(self._process, int(value))
                self._reports.send(b"\n")
            except OSError as error:
                self.failure = f"its gate could not be opened: {error.strerror}"
            else:
                self._take_listener(taken)
