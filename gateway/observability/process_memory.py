"""Read how much memory processes have, and how much this machine or container has. Nothing is known but on Linux.

The memory of a process is its *proportional set size* (PSS): its own pages, and its share of those that it has in
common with others. So a sum over processes is what they take of the machine. The kernel counts the pages when it is
asked, which takes about a millisecond for 10 MiB and 50 for 400 MiB. Call `tree_bytes` in a thread.
"""

import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from transports.upstream.cgroup_delegation import own_cgroup_folders
from transports.upstream.process_tree import trees

REAPER_BYTES: Final = 5 << 19
"""The memory of the reaper above each server: 2.5 MiB, as measured. The kernel does not let us read it, because reapers
are not dumpable."""

_MOST_IN_TREE: Final = 64
"""How many processes of one server are read. Of more, each counts as much as these on average."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def process_bytes(pid: int) -> int | None:
    """Return the memory of a process in bytes: PSS, or resident pages if the kernel does not let us read that. None if
    there is no such process."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:  # it has ended, or is another user's
        pass
    return resident_bytes(pid)


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
    for top, (_, *below) in trees(tops).items():
        read = [size for pid in below[:_MOST_IN_TREE] if (size := process_bytes(pid)) is not None]
        if read:
            found[top] = REAPER_BYTES + sum(read) * len(below) // min(len(below), _MOST_IN_TREE)
    return found


class MachineMemory(NamedTuple):
    """The memory of this machine, or of the cgroup around this process if that has a lower limit: all of it, and how
    much of it is available, in bytes. `is_cgroup`: it is the limit of a cgroup."""

    total: int
    available: int
    is_cgroup: bool = False


def machine_memory() -> MachineMemory | None:
    """Return the memory that processes started here can have; None if that is not known."""
    try:
        with open("/proc/meminfo", "rb") as file:
            facts = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(b":") for line in file)}
        total, available = facts[b"MemTotal"], facts[b"MemAvailable"]
    except (OSError, KeyError, ValueError):
        return None
    is_cgroup = False
    for most, left in _limits_of_cgroups():
        is_cgroup |= most < total
        total, available = min(total, most), min(available, left)
    return MachineMemory(total, max(0, available), is_cgroup)


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
