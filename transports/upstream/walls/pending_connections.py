"""Make connections on the sockets of another process, and answer later if they take long. Knows no policy.

Two processes that share a socket share its flags. So a blocking socket is made non-blocking while it connects, and its
process waits for the answer. So no server can block the gate.
"""

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener

MAX_WAITING: Final = 128
"""Maximum number of blocking sockets of one server that are being connected. Each costs a descriptor."""

_RETRY_S: Final = 0.02
_SWEEP_S: Final = 1.0
_TIME: Final = struct.Struct("@ll")  # struct timeval

_libc: Any = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class _Waiting:
    """A system call that is answered when its connection is made. `again` retries a Unix socket until it no longer
    returns EAGAIN."""

    made: InterceptedCall
    socket: socket.socket
    deadline: float | None
    again: Callable[[], int] | None


def connect(fd: int, address: bytes) -> int:
    """Call connect(2) with an encoded address. Return the errno, or 0."""
    return 0 if _libc.connect(fd, address, len(address)) == 0 else ctypes.get_errno()


def _attempted(fd: int, attempt: Callable[[], int]) -> int:
    """Run `attempt`, which connects this socket, and return its errno or 0. Always make the socket non-blocking first:
    its process can change the flag at any time, and must not make the gate wait."""
    os.set_blocking(fd, False)
    return attempt()


def _retried(fd: int, attempt: Callable[[], int]) -> int:
    try:
        return _attempted(fd, attempt)
    except OSError as error:
        return error.errno or errno.EACCES


class PendingConnections:
    """The connections that are being made for one server. The sockets to wait for are registered with `poller`."""

    def __init__(self, listener: Listener, poller: select.poll) -> None:
        self._listener = listener
        self._poller = poller
        self._waiting: dict[int, _Waiting] = {}
        self._inodes: dict[int, int] = {}
        self._next_sweep = 0.0

    def make(self, made: InterceptedCall, theirs: socket.socket, attempt: Callable[[], int]) -> None:
        """Begin a connection on the socket `theirs` by running `attempt`, which returns an errno or 0. Answer the
        system call now, or when the socket is ready. Owns `theirs`."""
        fd = theirs.fileno()
        if (earlier := self._inodes.get(os.fstat(fd).st_ino)) is not None:
            self._repeat(made, theirs, self._waiting[earlier])
            return
        blocking = os.get_blocking(fd)
        if blocking and len(self._waiting) >= MAX_WAITING:
            self._forget_dead()
        if blocking and len(self._waiting) >= MAX_WAITING:
            self._end(made, theirs, errno.EAGAIN)
            return
        try:
            error = _attempted(fd, attempt)
        except BaseException:
            if blocking:
                os.set_blocking(fd, True)
            raise
        if not blocking:
            self._end(made, theirs, error)
        elif error in (errno.EINPROGRESS, errno.EALREADY):
            self._wait(made, theirs, None)
            self._poller.register(fd, select.POLLOUT)
        elif error == errno.EAGAIN and theirs.family == socket.AF_UNIX:  # its listener is busy
            self._wait(made, theirs, attempt)
        else:
            os.set_blocking(fd, True)
            self._end(made, theirs, error)

    def ready(self, fd: int) -> None:
        """Answer the system call that waits for the socket `fd`, which has connected or has failed to."""
        waiting = self._waiting.get(fd)
        if waiting is None:
            return
        if not self._listener.is_valid(waiting.made):  # interrupted by a signal: the process asks for the result itself
            self._finish(fd, None)
        else:
            self._finish(fd, waiting.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def sweep(self) -> float | None:
        """Try again those Unix sockets that were busy, and end connections whose time is over. Return the seconds until
        the next sweep; None if nothing waits."""
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            self._forget_dead()
        for fd, waiting in tuple(self._waiting.items()):
            if waiting.deadline is not None and now >= waiting.deadline:
                self._finish(fd, errno.EAGAIN if waiting.again else errno.EINPROGRESS)
            elif waiting.again is not None and (error := _retried(fd, waiting.again)) != errno.EAGAIN:
                self._finish(fd, error)
        if any(waiting.again or waiting.deadline for waiting in self._waiting.values()):
            return _RETRY_S
        return _SWEEP_S if self._waiting else None

    def close(self) -> None:
        """Abandon all connections that are being made, without answering their calls."""
        for fd in tuple(self._waiting):
            self._finish(fd, None)

    def _forget_dead(self) -> None:
        for fd, waiting in tuple(self._waiting.items()):
            if not self._listener.is_valid(waiting.made):
                self._finish(fd, None)

    def _repeat(self, made: InterceptedCall, theirs: socket.socket, earlier: _Waiting) -> None:
        """Handle a second connect(2) on a socket that is already connecting. If the first call (`earlier`) still waits,
        another thread has made the second: it fails with EALREADY. Otherwise a signal has interrupted the first, and
        the second waits in its place."""
        if self._listener.is_valid(earlier.made):
            self._end(made, theirs, errno.EALREADY)
        else:
            earlier.made = made
            theirs.close()

    def _wait(self, made: InterceptedCall, theirs: socket.socket, again: Callable[[], int] | None) -> None:
        seconds, micros = _TIME.unpack(theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.size))
        limit = seconds + micros / 1e6
        fd = theirs.fileno()
        self._waiting[fd] = _Waiting(made, theirs, time.monotonic() + limit if limit else None, again)
        self._inodes[os.fstat(fd).st_ino] = fd

    def _finish(self, fd: int, error: int | None) -> None:
        """Stop waiting for the socket `fd`, and answer its system call with `error` (0: success). None: the call is not
        answered."""
        waiting = self._waiting.pop(fd)
        self._inodes.pop(os.fstat(fd).st_ino, None)
        with contextlib.suppress(KeyError):  # retried sockets are not polled
            self._poller.unregister(fd)
        os.set_blocking(fd, True)
        if error is None:
            waiting.socket.close()
        else:
            self._end(waiting.made, waiting.socket, error)

    def _end(self, made: InterceptedCall, theirs: socket.socket, error: int) -> None:
        theirs.close()
        self._listener.answer(made, error)
