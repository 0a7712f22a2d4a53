"""Processes below this one: finding them, killing them, and hearing of their end. For `fork_server.py`."""

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["HAS_PROC", "RESCAN_MS", "Wakeups", "below", "children", "kill", "parent", "prctl"]

RESCAN_MS: Final = 20
"""A process forked while we were looking sends us no SIGCHLD: look again this soon."""

try:
    import ctypes

    _libc: Any = ctypes.CDLL(None)
except (ImportError, OSError):  # a Python built without ctypes
    _libc = None


def prctl(option: int, value: int) -> None:
    """prctl(2), where there is one."""
    if _libc is not None and hasattr(_libc, "prctl"):
        _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


HAS_PROC: Final = os.path.isdir("/proc/self")
_CHILDREN_FILES: Final = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN


def _children_of(pid: int) -> list[int]:
    """Return the direct children of a process, those of its threads included. May miss one while others come and go."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just exited
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _children_of_all() -> dict[int, list[int]]:
    """Return the children of every process, read from all of /proc: for kernels without the `children` files."""
    found: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            if (above := parent(int(name))) is not None:
                found.setdefault(above, []).append(int(name))
    return found


def parent(pid: int) -> int | None:
    """Return the parent of a process or thread: None if there is no such process any more, 0 for the first of all."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name may hold spaces and brackets; state and parent follow the last bracket.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):  # it may have ended while it is read
        return None


def children() -> list[int]:
    """Return the direct children of this process."""
    own = os.getpid()
    return _children_of(own) if _CHILDREN_FILES else _children_of_all().get(own, [])


def below(roots: Iterable[int]) -> list[int]:
    """Return the given processes and all their descendants, parents first, so that a killed parent cannot fork
    again."""
    everyone = None if _CHILDREN_FILES else _children_of_all()
    found = list(roots)
    for pid in found:  # grows while it is walked
        found += _children_of(pid) if everyone is None else everyone.get(pid, ())
    return found


def kill(pids: Iterable[int]) -> None:
    """SIGKILL the processes and their groups: a group dies in one step, even one that forks faster than we look."""
    own = os.getpgrp()
    for pid in pids:
        with contextlib.suppress(OSError):  # gone already, or not ours to kill
            group = os.getpgid(pid)
            if group != own:  # a server that has not called setsid() yet is in the reapers' own group
                os.killpg(group, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)


class Wakeups:
    """SIGCHLD as a readable descriptor, so that one poll() waits for children and sockets alike."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler of ours nothing is written

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)
