"""Receive and answer system calls that a filter hands over (seccomp's user notification, Linux 5.14). The calling
process waits until another one has decided.

This module knows the kernel's structures, but does not decide. A process can change what an argument points to during
the decision. So the kernel may only execute a call with pointers if something else decides it, too (Landlock).
Otherwise, the deciding process makes the call itself, on copies, and answers with the result.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from typing import Final, NamedTuple

from transports.upstream.walls.raw_system_calls import call, closing_fd
from transports.upstream.walls.resolved_paths import as_meant

# linux/seccomp.h, as x86_64 and aarch64 number their ioctls.
_RECEIVE: Final = 0xC050_2100
_ANSWER: Final = 0xC018_2101
_IS_VALID: Final = 0x4008_2102
_NOTIFICATION: Final = struct.Struct("=QIIiIQ6Q")  # id, thread, flags, number, machine, instruction, arguments
_RESPONSE: Final = struct.Struct("=QqiI")  # id, value, error, flags
_PLACE: Final = 0x4018_2103
_PLACEMENT: Final = struct.Struct("=QIIII")  # id, flags, our descriptor, its number there, its flags there
_AT_NUMBER, _AND_ANSWER = 1, 2
_CONTINUE: Final = 1
_MAX_PATH: Final = 4_096
_PAGE: Final = 4_096
_PIDFD_THREAD: Final = os.O_EXCL  # Linux 6.9


class InterceptedCall(NamedTuple):
    """A system call that waits for a decision."""

    id: int
    """The kernel's name for this waiting call."""
    thread: int
    """The id of the calling thread, as this process sees it."""
    number: int
    """The system call's number, which says which call it is (`raw_system_calls.numbers`)."""
    arguments: tuple[int, ...]

    def integer(self, place: int) -> int:
        """Return the argument number `place` (from 0), which the kernel takes as an int."""
        return signed(self.arguments[place])


class Listener:
    """Receive and answer the system calls that a seccomp filter announces on a descriptor. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_inheritable(fd, False)

    def receive(self) -> InterceptedCall | None:
        """Receive the next call. Return None if its thread has died. Only called while the descriptor is readable."""
        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.fd, _RECEIVE, buffer, True)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        number, thread, _, system_call, _, _, *arguments = _NOTIFICATION.unpack(buffer)
        return InterceptedCall(number, thread, system_call, tuple(arguments))

    def is_valid(self, made: InterceptedCall) -> bool:
        """Return True if the thread still waits in this call. If so, its id has not been given to another thread
        meanwhile."""
        try:
            fcntl.ioctl(self.fd, _IS_VALID, struct.pack("=Q", made.id))
        except OSError:
            return False
        return True

    def answer(self, made: InterceptedCall, error: int = 0) -> None:
        """Complete the call with the errno `error`, or with the result 0, if its thread still waits."""
        self._respond(made, 0, -error, 0)

    def succeed(self, made: InterceptedCall, value: int) -> None:
        """Complete the call with the result `value`, if its thread still waits."""
        self._respond(made, value, 0, 0)

    def give(self, made: InterceptedCall, fd: int, *, closes_on_exec: bool) -> None:
        """Complete the call by giving the process a duplicate of our descriptor `fd`. The call's result is the
        duplicate's number. `closes_on_exec`: the duplicate has the flag O_CLOEXEC. Raises `OSError`."""
        self._place(made, _AND_ANSWER, fd, 0, closes_on_exec)

    def replace(self, made: InterceptedCall, fd: int, number: int) -> None:
        """Replace the process's descriptor `number` by a duplicate of our descriptor `fd`. Raises `OSError`."""
        self._place(made, _AT_NUMBER, fd, number, True)

    def proceed(self, made: InterceptedCall) -> None:
        """Let the kernel execute the call. Allowed only for calls without pointers, whose arguments cannot change, and
        for calls on which something else decides."""
        self._respond(made, 0, 0, _CONTINUE)

    def close(self) -> None:
        """Close the descriptor. All calls that are waiting, and all later ones, fail with ENOSYS."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def _place(self, made: InterceptedCall, how: int, fd: int, number: int, closes_on_exec: bool) -> None:
        flags = os.O_CLOEXEC if closes_on_exec else 0
        fcntl.ioctl(self.fd, _PLACE, _PLACEMENT.pack(made.id, how, fd, number, flags))

    def _respond(self, made: InterceptedCall, value: int, error: int, flags: int) -> None:
        with contextlib.suppress(OSError):  # the thread was killed or interrupted
            fcntl.ioctl(self.fd, _ANSWER, _RESPONSE.pack(made.id, value, error, flags))


class _Span(ctypes.Structure):
    """The kernel's `struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(thread: int, address: int, size: int) -> bytes:
    """Return `size` bytes of another process's memory. Raises `OSError`: EFAULT if not all of them can be read."""
    buffer = ctypes.create_string_buffer(size)
    here = _Span(ctypes.addressof(buffer), size)
    there = _Span(address, size)
    # An address beyond the address space is EFAULT as well, from the kernel itself.
    if call("process_vm_readv", thread, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return buffer.raw


def read_path(thread: int, pointer: int) -> bytes:
    """Read the path at `pointer` in another process's memory, and return a path that names the same file for this
    process. Raises `OSError`."""
    return as_meant(thread, _read_string(thread, pointer))


def _read_string(thread: int, pointer: int) -> bytes:
    """Read a string from another process's memory, page by page: the page behind its end may not be mapped."""
    found = bytearray()
    while len(found) < _MAX_PATH:
        size = min(_PAGE - (pointer + len(found)) % _PAGE, _MAX_PATH - len(found))
        text, end, _ = read_memory(thread, pointer + len(found), size).partition(b"\0")
        found += text
        if end:
            return bytes(found)
    raise OSError(errno.ENAMETOOLONG, "no end within 4096 bytes")


def duplicate(thread: int, fd: int) -> int:
    """Return a duplicate of another process's descriptor in this process. Raises `OSError` (EBADF, ESRCH, EPERM).

    `fd` may be an argument as the process passed it. EPERM: the process has made itself undumpable, so that other
    processes cannot look into it.
    """
    with closing_fd(open_process(thread)) as process:
        return duplicate_from(process, fd)


def open_process(thread: int) -> int:
    """Return a descriptor (pidfd) of a process or thread. Raises `OSError` (ESRCH)."""
    try:
        return os.pidfd_open(thread, _PIDFD_THREAD)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.pidfd_open(_process_of(thread))


def duplicate_from(process: int, fd: int) -> int:
    """Return a duplicate, in this process, of the descriptor `fd` of another process. `process` is the pidfd of that
    process. Raises `OSError`."""
    return call("pidfd_getfd", process, signed(fd), 0)


def signed(value: int) -> int:
    """Return the C int that the kernel reads from an argument of 64 bits: its low 32 bits, with their sign."""
    return ctypes.c_int(value & 0xFFFF_FFFF).value


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
