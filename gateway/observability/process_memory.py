"""Read how much memory processes use, and how much this machine or container has. Give back what this process no
longer uses. Works only on Linux.

The memory of a process is its *proportional set size* (PSS): its own pages, and its share of pages that several
processes share. So the sum over processes is the memory that they use of the machine. The kernel counts the pages at
each read, which takes about 1 ms for 10 MiB and 50 ms for 400 MiB. So call `tree_bytes` in a thread.
"""

import ctypes
import heapq
import os
import re
from collections.abc import Callable, Collection, Iterator
from math import inf
from time import monotonic, process_time
from typing import Any, Final, NamedTuple

from transports.upstream.cgroup_delegation import own_cgroup_folders
from transports.upstream.process_tree import trees

REAPER_BYTES: Final = 5 << 19
"""The memory of a server's reaper: 2.5 MiB, as measured. The kernel does not allow to read it, because reapers are not
dumpable."""

_MOST_READ: Final = 64
"""Maximum number of processes of one server whose PSS is read: the largest ones. Each other process counts at most as
much as the smallest of these. The limit is needed because the server chooses how many processes it starts."""

_MOST_IN_TREE: Final = 1024
"""Maximum number of processes of one server that are counted. Further ones are ignored."""

_FORKED: Final = 0x40
"""The kernel's flag PF_FORKNOEXEC: the process was forked without exec(2), and may share all its pages."""

_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
_GROWN_BYTES: Final = 16 << 20
_TRIM_EVERY_S: Final = 10.0
_MOST_WAIT_S: Final = 600.0
_QUIET: Final = 0.1
"""A process is quiet if it uses less than this share of one processor."""

_FACTS: Final = re.compile(rb"^(MemTotal|MemAvailable|Shmem): *(\d+)", re.MULTILINE)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int | None:
    """Return the PSS of a process in bytes; None if there is no such process, or the kernel denies access."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), None)
    except OSError:  # it has ended, is another user's, or has made itself not dumpable
        return None


def resident_bytes(pid: int | None = None) -> int | None:
    """Return the resident memory of a process in bytes (default: this process); None if there is no such process. This
    is fast, but counts shared pages in full for every process."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return None


class HeapTrimming:
    """Give free memory of this process back to the system.

    Large messages are freed in between small objects that stay, and glibc keeps such memory: some 300 MB after 60
    bodies of 4 MB at once. To have it map each large block by itself would not keep it, but doubles the processor
    time of such a message. `malloc_trim` stops the event loop, for some 10 ms for each 100 MB: so a quiet second is
    awaited.
    """

    def __init__(
        self,
        *,
        own: Callable[[], int | None] = resident_bytes,
        trim: Callable[[int], Any] | None = _malloc_trim,
        clock: Callable[[], float] = monotonic,
        used: Callable[[], float] = process_time,
    ) -> None:
        self._own, self._trim, self._clock, self._used = own, trim, clock, used
        self._least = own() or 0
        self._wait_s, self._trimmed_at = _TRIM_EVERY_S, -inf
        self._looked_at, self._used_s = clock(), used()

    def trim_if_due(self, *, is_short: bool) -> None:
        """Trim the heap if the process is 16 MiB larger than at its smallest, and has used little processor time since
        the last call, or memory is short. Wait 10 seconds after each trim. If a trim gave little back, because the
        memory was in use, wait longer each time unless memory is short. Do nothing where the C library is not glibc."""
        size, now, used_s = self._own() or 0, self._clock(), self._used()
        is_quiet = used_s - self._used_s < _QUIET * (now - self._looked_at)
        self._least, self._looked_at, self._used_s = min(self._least, size), now, used_s
        wait_s = _TRIM_EVERY_S if is_short else self._wait_s
        is_due = size - self._least >= _GROWN_BYTES and now - self._trimmed_at >= wait_s
        if self._trim is None or not is_due or not (is_quiet or is_short):
            return
        self._trim(0)
        self._trimmed_at = now
        gave_back = size - (self._own() or 0) >= _GROWN_BYTES
        self._wait_s = _TRIM_EVERY_S if gave_back else min(2 * self._wait_s, _MOST_WAIT_S)


def tree_bytes(tops: Collection[int]) -> dict[int, int]:
    """Return the memory in bytes of the process tree below each pid in `tops`, the reapers of servers. Leave out a
    reaper if no process is left below it, or none can be read."""
    found: dict[int, int] = {}
    shmem_left = _meminfo().get(b"Shmem", 0)
    for top, (_, *below) in trees(tops, most=1 + _MOST_IN_TREE).items():
        resident = {pid: size for pid in below if (size := resident_bytes(pid)) is not None}
        unreadable = _Unreadable(shmem_left)
        read: list[int] = []
        for pid in heapq.nlargest(_MOST_READ, resident, key=resident.__getitem__):
            size = proportional_bytes(pid)
            if size is None:
                size = unreadable.bytes_of(pid)
            if size is not None:
                read.append(size)
            del resident[pid]
        shmem_left = unreadable.shmem_left
        if read:
            smallest = min(read)
            found[top] = REAPER_BYTES + sum(read) + sum(min(size, smallest) for size in resident.values())
    return found


class _Unreadable:
    """Estimate the memory of those processes of one server whose PSS cannot be read. A server can make all its
    processes unreadable, and their resident memory counts shared pages several times. So only some pages count:

    - Anonymous pages can be shared only by fork(2). Of the processes that were forked without exec(2), only the largest
      counts.
    - All shared memory together counts at most `shmem_left`, the shared memory of the machine that is not counted yet.
    - Pages of files do not count: the kernel can drop them.
    """

    def __init__(self, shmem_left: int) -> None:
        self.shmem_left = shmem_left
        self._largest_forked = 0

    def bytes_of(self, pid: int) -> int | None:
        """Return the bytes that count for a process. What was counted for the processes of earlier calls, and may be
        the same pages, is left out. Return None if there is no such process."""
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                facts = dict(line.split()[:2] for line in file if line.startswith(b"Rss"))
            with open(f"/proc/{pid}/stat", "rb") as file:
                flags = int(file.read().rpartition(b")")[2].split()[6])
            own, shmem = int(facts[b"RssAnon:"]) << 10, int(facts[b"RssShmem:"]) << 10
        except (OSError, IndexError):
            return None
        except KeyError:  # it has ended, and has no pages; or this is not Linux's own /proc
            return resident_bytes(pid) or None
        shmem = min(shmem, self.shmem_left)
        self.shmem_left -= shmem
        if flags & _FORKED:
            before, self._largest_forked = self._largest_forked, max(own, self._largest_forked)
            own = self._largest_forked - before
        return own + shmem


class MachineMemory(NamedTuple):
    """The total and the available memory, in bytes, that this machine and the cgroups around this process allow: each
    is the least of what any of them has."""

    total: int
    available: int


def machine_memory() -> MachineMemory | None:
    """Return the memory that this process and its children can use; None if it is not known."""
    facts = _meminfo()
    if b"MemTotal" not in facts or b"MemAvailable" not in facts:
        return None
    total, available = facts[b"MemTotal"], facts[b"MemAvailable"]
    for most, left in _limits_of_cgroups():
        total, available = min(total, most), min(available, left)
    return MachineMemory(total, max(0, available))


def _meminfo() -> dict[bytes, int]:
    """Return the numbers of `_FACTS` in /proc/meminfo in bytes; empty if there is no such file."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return {name: int(kib) << 10 for name, kib in _FACTS.findall(file.read())}
    except OSError:
        return {}


def _limits_of_cgroups() -> Iterator[tuple[int, int]]:
    """Yield two numbers of bytes, the memory limit and what is left of it, for each cgroup (version 2) around this
    process that has a limit. Cached pages of files count as left, because the kernel can drop them."""
    for folder in own_cgroup_folders():
        try:
            most = _text(folder, "memory.max")
            if not most.strip().isdigit():  # "max"
                continue
            facts = dict(line.split() for line in _text(folder, "memory.stat").splitlines())
            files = int(facts["inactive_file"]) + int(facts["active_file"])
            yield int(most), int(most) - int(_text(folder, "memory.current")) + files
        except (OSError, KeyError, ValueError):  # the root of the tree has no limit
            continue


def _text(folder: str, name: str) -> str:
    with open(f"{folder}/{name}", encoding="ascii") as file:
        return file.read()
