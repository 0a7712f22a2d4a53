"""System calls that a filter hands over (seccomp's user notification, Linux 5.14): their process waits until another
one has decided them.

Knows the kernel's structures, and nothing of what is decided. What a process passes by pointer can change while the
decision is made. So a call with pointers goes on only if something else decides it (Landlock); for all others the
decider acts itself, on copies, and answers the result.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from typing import Final, NamedTuple

from transports.upstream.walls.paths import as_meant
from transports.upstream.walls.system_calls import call

__all__ = [
    "InterceptedCall",
    "Listener",
    "duplicate",
    "duplicate_from",
    "open_process",
    "read_memory",
    "read_path",
    "signed",
]

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
    """A system call that waits. `thread` is the number of the calling thread, as this process sees it."""

    id: int
    thread: int
    number: int
    arguments: tuple[int, ...]

    def integer(self, place: int) -> int:
        """Return an argument that the kernel takes as an int."""
        return signed(self.arguments[place])


class Listener:
    """The descriptor on which the calls of a filter are announced. Owns it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_inheritable(fd, False)

    def receive(self) -> InterceptedCall | None:
        """Take the next call. None if its thread has died. Only called while the descriptor is readable."""
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
        """Return True if the thread still waits in this call: what was looked up by its number since was its own."""
        try:
            fcntl.ioctl(self.fd, _IS_VALID, struct.pack("=Q", made.id))
        except OSError:
            return False
        return True

    def answer(self, made: InterceptedCall, error: int = 0) -> bool:
        """End the call: it returns 0 or this errno. False if its thread does not wait any more (killed, a signal)."""
        return self._respond(made, 0, -error, 0)

    def succeed(self, made: InterceptedCall, value: int) -> bool:
        """End the call: it returns this value. False as for `answer`."""
        return self._respond(made, value, 0, 0)

    def give(self, made: InterceptedCall, fd: int, *, closes_on_exec: bool) -> None:
        """End the call: the process gets a duplicate of our descriptor, and its number. Raises `OSError`."""
        self._place(made, _AND_ANSWER, fd, 0, closes_on_exec)

    def replace(self, made: InterceptedCall, fd: int, number: int) -> None:
        """Let the process's descriptor of that number be a duplicate of ours. Raises `OSError`."""
        self._place(made, _AT_NUMBER, fd, number, True)

    def proceed(self, made: InterceptedCall) -> bool:
        """Let the kernel make the call. Only for calls without pointers, whose arguments cannot have changed, and for
        those that something else decides."""
        return self._respond(made, 0, 0, _CONTINUE)

    def close(self) -> None:
        """Let waiting and later calls fail with ENOSYS."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def _place(self, made: InterceptedCall, how: int, fd: int, number: int, closes_on_exec: bool) -> None:
        flags = os.O_CLOEXEC if closes_on_exec else 0
        fcntl.ioctl(self.fd, _PLACE, _PLACEMENT.pack(made.id, how, fd, number, flags))

    def _respond(self, made: InterceptedCall, value: int, error: int, flags: int) -> bool:
        try:
            fcntl.ioctl(self.fd, _ANSWER, _RESPONSE.pack(made.id, value, error, flags))
        except OSError:
            return False
        return True


class _Span(ctypes.Structure):
    """struct iovec"""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(thread: int, address: int, size: int) -> bytes:
    """Copy memory of another process. Raises `OSError`: EFAULT if any of it is not readable there."""
    buffer = ctypes.create_string_buffer(size)
    here = _Span(ctypes.addressof(buffer), size)
    there = _Span(address, size)
    # An address beyond the address space is EFAULT as well, from the kernel itself.
    if call("process_vm_readv", thread, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return buffer.raw


def read_path(thread: int, pointer: int) -> bytes:
    """Return a path in the memory of another process, as this process means it. Raises `OSError`."""
    return as_meant(thread, _read_string(thread, pointer))


def _read_string(thread: int, pointer: int) -> bytes:
    """Return a string of another process, which may end before the page after it exists."""
    found = bytearray()
    while len(found) < _MAX_PATH:
        size = min(_PAGE - (pointer + len(found)) % _PAGE, _MAX_PATH - len(found))
        text, end, _ = read_memory(thread, pointer + len(found), size).partition(b"\0")
        found += text
        if end:
            return bytes(found)
    raise OSError(errno.ENAMETOOLONG, "no end within 4096 bytes")


def duplicate(thread: int, fd: int) -> int:
    """Return a descriptor of our own for what another process's descriptor refers to. Raises `OSError` (EBADF, ESRCH,
    EPERM).

    `fd` may be an argument as it was passed. EPERM: the process has made itself undumpable, so that we may not look
    into it.
    """
    process = open_process(thread)
    try:
        return duplicate_from(process, fd)
    finally:
        os.close(process)


def open_process(thread: int) -> int:
    """Return a descriptor of a process or thread. Raises `OSError` (ESRCH)."""
    try:
        return os.pidfd_open(thread, _PIDFD_THREAD)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.pidfd_open(_process_of(thread))


def duplicate_from(process: int, fd: int) -> int:
    """Do as `duplicate`, of a process that is open."""
    return call("pidfd_getfd", process, signed(fd), 0)


def signed(value: int) -> int:
    """Return what the kernel takes as an int."""
    return ctypes.c_int(value & 0xFFFF_FFFF).value


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
