"""Read how much memory processes have, and how much this machine or container has. Nothing is known but on Linux.

The memory of a process is its *proportional set size* (PSS): its own pages, and its share of those that it has in
common with others. So a sum over processes is what they take of the machine. The kernel counts the pages when it is
asked, which takes about a millisecond for 10 MiB and 50 for 400 MiB. Call `tree_bytes` in a thread.
"""

import heapq
import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from transports.upstream.cgroup_delegation import own_cgroup_folders
from transports.upstream.process_tree import trees

REAPER_BYTES: Final = 5 << 19
"""The memory of the reaper above each server: 2.5 MiB, as measured. The kernel does not let us read it, because reapers
are not dumpable."""

_MOST_READ: Final = 64
"""How many processes of one server are read, the largest. Each other counts at most as much as the smallest of these:
the server chooses how many there are."""

_MOST_IN_TREE: Final = 1024
"""How many processes of one server are looked at. More count nothing."""

_FORKED: Final = 0x40
"""The flag PF_FORKNOEXEC of a process: it has called no exec(2), so it may have all its pages in common with others."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int | None:
    """Return the PSS of a process in bytes. None if the kernel does not let us read it, or there is no such process."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:")), None)
    except OSError:  # it has ended, is another user's, or has made itself not dumpable
        return None


def resident_bytes(pid: int | None = None) -> int | None:
    """Return the resident memory of a process in bytes; that of this process if no id is given. It costs nothing, and
    counts shared pages for every process. None if there is no such process."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return None


def tree_bytes(tops: Collection[int]) -> dict[int, int]:
    """Return the memory of the processes below each of these, which are the reapers of servers. Leave out those below
    which none is left, or none can be read."""
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
    """Count the processes of one server whose PSS the kernel does not let us read. A server can make all its processes
    so, and its resident memory counts a page once for each place where it is mapped. So pages count that can be its
    own alone:

    - Anonymous pages are in common only between processes of which one has forked the other. Of forked ones, the
      largest counts.
    - All shared memory together counts at most `shmem_left`, what the machine has.
    - Pages of files count nothing: the kernel can drop them.
    """

    def __init__(self, shmem_left: int) -> None:
        self.shmem_left = shmem_left
        self._largest_forked = 0

    def bytes_of(self, pid: int) -> int | None:
        """Return what a process adds to those counted before. None if there is no such process."""
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
    """The memory of this machine, or of the cgroup around this process if that has a lower limit: all of it, and how
    much of it is available, in bytes."""

    total: int
    available: int


def machine_memory() -> MachineMemory | None:
    """Return the memory that processes started here can have; None if that is not known."""
    facts = _meminfo()
    if b"MemTotal" not in facts or b"MemAvailable" not in facts:
        return None
    total, available = facts[b"MemTotal"], facts[b"MemAvailable"]
    for most, left in _limits_of_cgroups():
        total, available = min(total, most), min(available, left)
    return MachineMemory(total, max(0, available))


def _meminfo() -> dict[bytes, int]:
    """Return the numbers of /proc/meminfo in bytes; none if there is no such file."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(b":") for line in file)}
    except (OSError, ValueError, IndexError):
        return {}


def _limits_of_cgroups() -> Iterator[tuple[int, int]]:
    """Yield the limit of each cgroup (version 2) around this process, and what is left of it. Pages of files that are
    not in use can be had back, so they count as left."""
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
