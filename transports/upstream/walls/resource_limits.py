"""Limit the resources that a server's processes may use up (rlimits), and their privileges (capabilities)."""

import contextlib
import ctypes
import resource
import struct
from collections.abc import Iterator
from typing import Final

from transports.upstream.walls.raw_system_calls import call
from transports.upstream.walls.wall_specification import Limits

_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 38, 47
_AMBIENT_CLEAR_ALL: Final = 4
_OF_THIS_THREAD: Final = struct.pack("=Ii", 0x2008_0522, 0)  # struct cap_user_header, version 3
_CapabilitySets: Final = ctypes.c_char * 24
_KEPT: Final = 1 << 1  # DAC_OVERRIDE: the walls decide which files there are, not their owners
_MOST_TIMERS: Final = 16_384
"""The limit of timers and queued signals for servers. The kernel counts them for a whole user, but compares the count
with the limit of the process that asks. Servers have a lower limit than others, so that some remain for other
processes."""


def limit(limits: Limits) -> None:
    """Apply the limits to this process and everything it will start. A lower limit of the gateway itself remains.

    The number of processes is not limited here: the kernel would count those of the whole user.

    Raises:
        OSError, ValueError: the kernel refuses.
    """
    wanted = {resource.RLIMIT_CORE: 0}
    if limits.memory_bytes is not None:
        wanted[resource.RLIMIT_DATA] = limits.memory_bytes
    if limits.files is not None:
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # below that of the gateway: see `raised_files`
        is_open = most_files == resource.RLIM_INFINITY
        wanted[resource.RLIMIT_NOFILE] = limits.files if is_open else min(limits.files, most_files * 3 // 4)
    timers = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    wanted[resource.RLIMIT_SIGPENDING] = _MOST_TIMERS if timers == resource.RLIM_INFINITY else timers // 4
    for which, most in wanted.items():
        if (ours := resource.getrlimit(which)[1]) != resource.RLIM_INFINITY:
            most = min(most, ours)
        resource.setrlimit(which, (most, most))


def forbid_new_privileges() -> None:
    """Prevent all programs that this process executes from gaining rights: setuid bits and file capabilities are
    ignored."""
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up every capability but DAC_OVERRIDE, which concerns files. This matters where the gateway runs as root, as
    in a container.

    `no_new_privs` must be set. Then no program that this process executes regains them, whatever its user is.
    """
    held = _CapabilitySets()
    call("capget", _OF_THIS_THREAD, held)
    effective, permitted, *others = struct.unpack("=6I", held)
    if effective or permitted or any(others):
        call("capset", _OF_THIS_THREAD, struct.pack("=6I", effective & _KEPT, permitted & _KEPT, 0, 0, 0, 0))
        call("prctl", _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)


@contextlib.contextmanager
def raised_files() -> Iterator[None]:
    """Raise the limit of open files to its maximum in a `with` block, to send descriptors through sockets. The limit is
    that of all threads, and a higher one does no harm.

    The kernel counts the descriptors in transit for a whole user: sent, but not yet received. If this count exceeds the
    limit of open files of a process, that process cannot send one. Any process of the user can fill the count up to its
    own limit. So a server's limit is lower than those of its reaper and the gateway.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # there are systems that do not take their own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
