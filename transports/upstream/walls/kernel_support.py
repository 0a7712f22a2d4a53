"""Find out, by trying, which sandbox mechanisms the kernel supports. Say which parts of walls are not enforced without
them."""

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from transports.upstream.walls import landlock
from transports.upstream.walls.namespaces import why_not, why_shared
from transports.upstream.walls.raw_system_calls import call, closing_fd, machine
from transports.upstream.walls.wall_specification import Walls

_GET_ACTION_AVAILABLE: Final = 2
_REFUSE, _NOTIFY = 0x0005_0000, 0x7FC0_0000
_NOT_TRIED: Final = "namespaces were not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The sandbox mechanisms that this kernel supports, and the reasons why it lacks others."""

    landlock: int
    """The version of Landlock (its ABI) that the kernel has; 0 if none."""
    filters: str
    """The reason why seccomp filters cannot be used; empty if they can."""
    gate: str
    """The reason why no gate can run (a thread that answers system calls of a server): no user notification, or no
    access to a server's memory. Empty if one can."""
    namespaces: str
    """The reason why user, process, mount and IPC namespaces cannot be used; empty if they can."""
    mounts: str
    """The reason why a process can have no mounts of its own without the other namespaces; empty if it can."""

    def shared(self, walls: Walls) -> tuple[str, ...]:
        """Return one sentence if the server can use no /tmp and /dev/shm: it cannot have its own, and the machine's are
        closed to it. Otherwise return an empty tuple. This never prevents a start."""
        if walls.own_folders and not walls.namespaces and self.mounts:
            return (f"The server has no /tmp and /dev/shm of its own, and the machine's are closed: {self.mounts}.",)
        return ()

    def missing(self, walls: Walls) -> tuple[str, ...]:
        """Return a sentence for each part of these walls that this kernel cannot enforce."""
        return tuple(self._missing(walls))

    def _missing(self, walls: Walls) -> Iterator[str]:
        apart = walls.namespaces and not self.namespaces
        if not self.landlock:
            yield "Files are not closed to the server: the kernel has no Landlock, or it is switched off."
        elif self.landlock < 3 and not apart and self.gate:
            yield "Files that the server may not write can be truncated by it: that takes Landlock ABI 3 (Linux 6.2)."
        if self.filters:
            yield f"No system call is refused: {self.filters}."
        if walls.namespaces and self.namespaces:
            yield f"The server sees the names of other processes, and has no /tmp of its own: {self.namespaces}."
        if self.gate:
            yield from self._without_gate(walls, apart)

    def _without_gate(self, walls: Walls, apart: bool) -> Iterator[str]:
        if walls.reach is not None:
            tcp_is_closed = self.landlock >= 4 and not (walls.reach.public or walls.reach.hosts)
            yield f"The server may connect to everything{' but by TCP' * tcp_is_closed}: {self.gate}."
            ports = "the ports that it is granted and free ones" if self.landlock >= 4 else "every port"
            yield f"The server may listen on every address, on {ports}: {self.gate}."
        if not apart:
            yield f"The server may change mode and times of its user's files: {self.gate}."
            if self.landlock < 6:
                yield "The server may send signals to its user's processes: that takes Landlock ABI 6 (Linux 6.12)."


def probe(*, namespaces: bool = False) -> Kernel:
    """Find out which sandbox mechanisms the kernel supports, and return them. Later calls return the same result. With
    `namespaces`, also try namespaces. That forks, so this process must not have other threads."""
    found = _without_namespaces()
    if not namespaces or found.namespaces != _NOT_TRIED:
        return found
    return replace(found, namespaces=why_not(), mounts=why_shared())


@cache
def _without_namespaces() -> Kernel:
    try:
        machine()
    except OSError as error:
        reason = error.strerror or "unknown machine"
        return Kernel(landlock=0, filters=reason, gate=reason, namespaces=reason, mounts=reason)
    filters = _tried("seccomp filters", lambda: _try_action(_REFUSE))
    notification = _tried("seccomp user notification", lambda: _try_action(_NOTIFY))
    return Kernel(
        landlock=landlock.abi(),
        filters=filters,
        gate=filters or notification or _tried("access to a server's memory and descriptors", _try_access),
        namespaces=_NOT_TRIED,
        mounts=_NOT_TRIED,
    )


def _tried(what: str, attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        missing = error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
        return f"the kernel has no {what}" if missing else f"{what}: {error.strerror}"
    return ""


def _try_action(action: int) -> None:
    call("seccomp", _GET_ACTION_AVAILABLE, 0, struct.pack("=I", action))


def _try_access() -> None:
    """Test if the memory and a descriptor of a process can be copied, with this process. Raises `OSError` if not."""
    source, copy = ctypes.create_string_buffer(b"?", 1), ctypes.create_string_buffer(1)
    remote = struct.pack("=QQ", ctypes.addressof(source), 1)
    local = struct.pack("=QQ", ctypes.addressof(copy), 1)
    call("process_vm_readv", os.getpid(), local, 1, remote, 1, 0)
    with closing_fd(os.pidfd_open(os.getpid())) as process:
        os.close(call("pidfd_getfd", process, process, 0))
    if _yama() > 1:
        raise OSError(errno.EPERM, "kernel.yama.ptrace_scope is above 1")


def _yama() -> int:
    """Return the setting `ptrace_scope` of Yama; 0 without Yama. Up to 1, a process may inspect its descendants."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
