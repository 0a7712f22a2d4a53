"""Find, count and kill descendants of processes, and learn when they end. Part of the program `fork_server.py`."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Container, Iterable
from functools import partial
from typing import Any, Final

RESCAN_MS: Final = 20
"""Milliseconds until descendants are searched for again. A process that was forked during a search sends no SIGCHLD to
this process."""

_libc: Any = ctypes.CDLL(None)


def prctl(option: int, value: int) -> None:
    """Call prctl(2), if the system has it."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


HAS_PROC: Final = os.path.isdir("/proc/self")
_CHILDREN_FILES: Final = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN


def _content(path: str) -> bytes:
    """Return the content of a file in /proc. Unlike `open`, this copies little of the fork server's memory."""
    file = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(partial(os.read, file, 4_096), b""))
    finally:
        os.close(file)


def _children_of(pid: int) -> list[int]:
    """Return the direct children of a process, from all its threads. May miss one while others start and end."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just exited
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _content(f"/proc/{pid}/task/{task}/children").split())
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
    """Return the id of the parent of a process or thread: None if the process has ended, 0 for the first process."""
    try:
        # The command name may hold spaces and brackets; state and parent follow the last bracket.
        return int(_content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    except (OSError, IndexError):  # it may have ended while it is read
        return None


_MAX_DEPTH: Final = 10_000  # a chain of parents longer than that is a circle of reused ids


def is_below(pid: int, ancestor: int, *, most_levels: int = _MAX_DEPTH) -> bool:
    """Return True if a process or thread is a descendant of `ancestor`. False beyond `most_levels` generations."""
    for _ in range(most_levels):
        above = parent(pid)
        if not above:
            return False
        if above == ancestor:
            return True
        pid = above
    return False


def children() -> list[int]:
    own = os.getpid()
    return _children_of(own) if _CHILDREN_FILES else _children_of_all().get(own, [])


def below(roots: Iterable[int]) -> list[int]:
    """Return the given processes and all their descendants, parents first, so that a killed parent cannot fork
    again."""
    return _walked(list(roots), None if _CHILDREN_FILES else _children_of_all())


def trees(roots: Collection[int], *, most: int) -> dict[int, list[int]]:
    """Return a list for each of the given processes: the process itself, then its descendants. Each list has at most
    `most` processes. Read the whole of /proc at most once."""
    everyone = None if _CHILDREN_FILES else _children_of_all()
    return {root: _walked([root], everyone, most) for root in roots}


def _walked(found: list[int], everyone: dict[int, list[int]] | None, most: int | None = None) -> list[int]:
    for pid in found:  # grows while it is walked
        found += _children_of(pid) if everyone is None else everyone.get(pid, ())
        if most is not None and len(found) >= most:
            break
    return found[:most]


def kill(pids: Iterable[int]) -> None:
    """Kill the processes and their groups (SIGKILL). A group dies in one step, even if it forks faster than this code
    looks."""
    own = os.getpgrp()
    for pid in pids:
        with contextlib.suppress(OSError):  # gone already, or not ours to kill
            group = os.getpgid(pid)
            if group != own:  # a server that has not called setsid() yet is in the reapers' own group
                os.killpg(group, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)


class Wakeups:
    """Turn signals into a readable descriptor, so that one poll() waits for children and for sockets. Only signals with
    a handler count. The fork server sets the handlers: to set one in a reaper copies 150 KiB of memory."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def drain(self, ready: Container[int]) -> bytes:
        """Return a byte for each signal that has arrived: its number. `ready`: the descriptors that poll() found."""
        return os.read(self.fd, 4096) if self.fd in ready else b""

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)


LOOK_MS: Final = 100
_MANY: Final = 64
"""The number of starts on the machine after which reapers count their processes again. A server may briefly exceed its
limit by this number."""
_TRIES: Final = 5
_SEES_ALL: Final = os.path.exists("/proc/1/stat")
"""False if /proc hides the processes of other users (`hidepid`), because it may then hide those of servers too."""


class StartCounter:
    """Count the processes and threads that were started on this machine, or in this container. The reapers then count
    the processes of their servers, and end a server that has too many.

    The kernel's own limit counts all processes of a user, not of a server. Reporting each start to the gate is no
    alternative: signals would interrupt starts before the gate sees them, and shells take that for a failure. So the
    fork server checks ten times a second how many processes the machine has started. After many, the reapers count if
    one of these processes may be their descendant."""

    def __init__(self) -> None:
        self._seen = _last_number()

    def below(self, reapers: Collection[int]) -> Iterable[int]:
        """After many starts, return the reapers that have new descendants, or may have some. Else return none.

        The work is in proportion to the number of starts, not of reapers. Otherwise, where many processes start and
        end, very many reapers would count several times a second, and delay everything else.
        """
        last = _last_number()
        number = last - self._seen  # ids rise, and start again after the highest
        if 0 <= number < _MANY:
            return ()
        first, self._seen = self._seen + 1, last
        if not 0 < number < _MANY * len(reapers) or not _SEES_ALL:
            return reapers  # to count is less work, or it is unknown what was started
        return _above(range(first, last + 1), reapers)


def _last_number() -> int:
    """Return the id of the process or thread that the system has started last (proc(5), loadavg); 0 if unknown."""
    try:
        return int(_content("/proc/loadavg").split()[-1])
    except OSError:
        return 0


def _above(pids: Iterable[int], reapers: Collection[int]) -> Iterable[int]:
    """Return the reapers that are ancestors of these processes and threads; all reapers if that is unknown."""
    owners: dict[int, int] = {}
    for pid in pids:
        for _ in range(_TRIES):
            if _note_owner(pid, reapers, owners):
                break
        else:
            return reapers
    return {owner for owner in owners.values() if owner}


def _note_owner(pid: int, reapers: Collection[int], owners: dict[int, int]) -> bool:
    """Find the reaper that is an ancestor of a process. Record it in `owners` for the process and for all processes
    between them; 0 if none of the reapers is. Return False, and record nothing, if a process between them has just
    ended: its children have another parent now, so the caller tries again."""
    walked: list[int] = []
    while pid not in owners and pid not in reapers:
        above = parent(pid)
        if (above is None and walked) or len(walked) > _MAX_DEPTH:
            return False
        walked.append(pid)
        pid = above or 0
        if not above:
            break
    owner = owners.get(pid, pid if pid in reapers else 0)
    owners.update(dict.fromkeys(walked, owner))
    return True


def count() -> int:
    """Return the number of threads in all descendants of this process."""
    found = 0
    for pid in below([os.getpid()])[1:]:
        try:
            found += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has just ended
            continue
    return found
