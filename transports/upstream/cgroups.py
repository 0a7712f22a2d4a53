"""Give each server a cgroup (version 2): limits for all its processes together, and a single step that kills them all.

Part of the program `fork_server.py`, which has a folder beside the gateway's leaf (`cgroup_delegation.py`). In this
folder, the reaper of each server with walls makes one cgroup. The server is in its cgroup from its first instruction
on; the reaper is not. The folder is locked while the fork server or one of its reapers lives. A folder without a lock
was left behind by a gateway that was killed. The next start kills the processes in it, and removes it.
"""

import errno
import fcntl
import os
import signal
import struct
import time
from contextlib import suppress
from typing import Final

from transports.upstream.cgroup_delegation import Delegation, write, writes_alone
from transports.upstream.walls.build_walls import WallsFailed, not_enforced
from transports.upstream.walls.raw_system_calls import closing_fd, fork_by
from transports.upstream.walls.wall_specification import Limits, Walls

_FOLDER: Final = "mcp-servers."
_PERIOD_US: Final = 100_000
_INTO_CGROUP: Final = 0x2_0000_0000
_NO_CLONE3: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG)
"""Errors with which clone3 fails: before Linux 5.7, on machines whose system call numbers are not known, and in
containers whose seccomp filters cannot check its arguments."""
_LEFT_WITHIN_S: Final = 2.0
_REMOVED_WITHIN_S: Final = 0.5
_PAUSE_S: Final = 0.002
_NO_MORE: Final = "no more are started"
_EXCEEDED: Final = "its processes had more together, and were ended"


class Groups:
    """The cgroups of the servers that one fork server has started. Without a delegated subtree there are none."""

    def __init__(self, delegation: Delegation) -> None:
        self.count = "pids" in delegation.controllers
        """True if the kernel counts processes and threads."""
        self._delegation = delegation
        self._root = delegation.root
        self._name = _FOLDER + os.urandom(6).hex()
        self._next = 0
        self._of: dict[int, str] = {}  # reaper → name of its group
        self._left: set[str] = set()
        self._folder = -1
        self._failure = ""
        if self._root:
            try:
                self._make_folder()
            except OSError as error:  # then nothing is started that should be in a group
                self._failure = f"{self._root}: {error.strerror}"

    def _make_folder(self) -> None:
        path = f"{self._root}/{self._name}"
        with writes_alone(self._root):
            _remove_left(self._root)
            os.mkdir(path)
            self._folder = _open_folder(path)
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        if controllers := self._delegation.controllers:
            write(self._folder, "cgroup.subtree_control", " ".join(f"+{each}" for each in controllers))

    def belongs_to(self, reaper: int) -> None:
        """Record that the next cgroup is for this reaper, which was just forked."""
        if self._folder >= 0:
            self._of[reaper] = str(self._next)
            self._next += 1

    def group(self, walls: Walls | None) -> "Group | None":
        """Make the cgroup of the calling reaper's server, with the limits in `walls`. Return None if the server has no
        walls, or the gateway has no subtree of cgroups.

        Raises:
            WallsFailed: a cgroup cannot be made, or the walls are required and their limits cannot be enforced.
        """
        if walls is None:
            return None
        if walls.required and (missing := tuple(self._delegation.missing(walls.limits))):
            raise not_enforced(walls, missing)
        if not self._root:
            return None
        failure = self._failure
        try:
            if not failure:
                return Group(self._folder, str(self._next), walls.limits, self._delegation.controllers)
        except OSError as error:
            failure = error.strerror or str(error)
        raise WallsFailed(f"The sandbox {walls.profile!r} could not be built (cgroup): {failure}")

    def ended(self, reaper: int, *, in_order: bool) -> None:
        """Record the end of a reaper. If it has not ended `in_order`, `clean` has to remove its server's cgroup."""
        name = self._of.pop(reaper, None)
        if name is not None and not in_order:
            self._left.add(name)

    def clean(self) -> bool:
        """Kill the processes in the cgroups of reapers that were killed, and remove these cgroups. Return True if one
        still exists."""
        for name in tuple(self._left):
            if _removed(self._folder, name):
                self._left.discard(name)
        return bool(self._left)

    def close(self) -> None:
        """Remove the folder of the cgroups. All reapers must have ended."""
        if self._folder >= 0:
            with suppress(OSError):
                os.rmdir(f"{self._root}/{self._name}")


class Group:
    """The cgroup of one server, empty at first. Used by the server's reaper."""

    def __init__(self, parent: int, name: str, limits: Limits, controllers: tuple[str, ...]) -> None:
        self._parent = parent
        self._name = name
        self._has_memory = "memory" in controllers
        self._most_mb = (limits.total_memory_bytes or 0) >> 20
        self.most_processes = limits.processes if "pids" in controllers else None
        """The kernel's limit on processes and threads; None if it has none."""
        self._is_cloned = False
        self._refused = 0
        self._pid_events = -1
        os.mkdir(name, dir_fd=parent)
        self._folder = _open_folder(name, parent)
        try:
            self._limit(limits, controllers)
        except OSError:
            os.rmdir(name, dir_fd=parent)
            raise

    def _limit(self, limits: Limits, controllers: tuple[str, ...]) -> None:
        if self._has_memory and limits.total_memory_bytes is not None:
            write(self._folder, "memory.max", str(limits.total_memory_bytes))
            with suppress(FileNotFoundError):  # a kernel that never swaps
                write(self._folder, "memory.swap.max", "0")
        if self._has_memory:
            write(self._folder, "memory.oom.group", "1")
        if self.most_processes is not None:
            write(self._folder, "pids.max", str(self.most_processes))
        if "cpu" in controllers and limits.processors is not None:
            write(self._folder, "cpu.max", f"{max(1_000, round(limits.processors * _PERIOD_US))} {_PERIOD_US}")

    def fork(self) -> int:
        """Fork like `os.fork`, with the child in the cgroup once it has called `enter`. If the kernel can do that, the
        child is created inside the cgroup, because moving a process takes milliseconds."""
        # CLONE_INTO_CGROUP: struct clone_args ends with the descriptor of the folder.
        given = struct.pack("=11Q", _INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, self._folder)
        try:
            pid = fork_by("clone3", given, len(given))
        except OSError as error:
            if error.errno not in _NO_CLONE3:
                raise
            return os.fork()
        self._is_cloned = pid == 0
        return pid

    def enter(self) -> None:
        """Put the calling child into the cgroup, before it runs any code of the server. Raises `OSError`."""
        if not self._is_cloned:
            write(self._folder, "cgroup.procs", "0")

    def watch(self) -> int:
        """Return a descriptor on which poll(2) reports POLLPRI when the kernel refuses to start a process; -1 if there
        is no limit. It reports nothing before the first call of `newly_refused`."""
        if self.most_processes is not None:
            self._pid_events = os.open("pids.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        return self._pid_events

    def newly_refused(self) -> tuple[str, str, str] | None:
        """Return a refusal to report (kind, what, why) if the kernel has refused to start a process of the server since
        the last call of this method; otherwise None."""
        before, self._refused = self._refused, _events(os.pread(self._pid_events, 256, 0)).get("max", 0)
        return ("processes", str(self.most_processes), _NO_MORE) if self._refused > before else None

    def last_refusal(self) -> tuple[str, str, str] | None:
        """Return a refusal to report (kind, what, why) if the kernel has killed processes of the server because of the
        cgroup's memory limit; otherwise None."""
        return ("memory", str(self._most_mb), _EXCEEDED) if self._exceeded() else None

    def kill(self) -> None:
        """Kill every process in the cgroup, even a hidden one, in one step. Kernels before 5.14 need a step for each
        process."""
        _kill(self._folder)

    def end(self) -> str:
        """Remove the cgroup, whose processes have been killed. If they ran out of memory, return whose memory it was,
        as a sentence; else return an empty text.

        Raises:
            OSError: the kernel still has some of the processes. The fork server goes on trying.
        """
        why = ""
        if self._exceeded():
            why = f"its processes had more than {self._most_mb} MiB of memory together (sandbox.total_memory_mb)"
        elif self._memory_events().get("oom_kill"):
            why = "the memory of the machine, or of the gateway's own cgroup, ran out"
        deadline = time.monotonic() + _REMOVED_WITHIN_S
        while not _removed(self._parent, self._name):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "the cgroup of a server cannot be removed")
            time.sleep(_PAUSE_S)
        return why

    def _exceeded(self) -> bool:
        """Return True if the processes were killed because of this cgroup's own memory limit. Return False if the limit
        of an enclosing cgroup was the reason."""
        events = self._memory_events()
        return self._most_mb > 0 and bool(events.get("oom_kill") and events.get("oom"))

    def _memory_events(self) -> dict[str, int]:
        if not self._has_memory:
            return {}
        with closing_fd(os.open("memory.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)) as file:
            return _events(os.read(file, 512))


def _remove_left(root: str) -> None:
    """Kill the processes that gateways have left behind in the subtree because they were killed. Remove these
    processes' cgroups and folders."""
    deadline = time.monotonic() + _LEFT_WITHIN_S
    for name in os.listdir(root):
        if not name.startswith(_FOLDER):
            continue
        # The error: it is in use, or was just removed by another gateway.
        with suppress(OSError), closing_fd(_open_folder(f"{root}/{name}")) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            groups = [each.name for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
            while groups and time.monotonic() < deadline:
                groups = [each for each in groups if not _removed(folder, each)]
                time.sleep(_PAUSE_S if groups else 0)
            os.rmdir(f"{root}/{name}")


def _removed(parent: int, name: str) -> bool:
    """Remove a cgroup, and return True. If there are still processes in it, kill them and return False."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        with suppress(OSError), closing_fd(_open_folder(name, parent)) as folder:
            _kill(folder)
        return False
    return True


def _kill(folder: int) -> None:
    try:
        write(folder, "cgroup.kill", "1")
    except FileNotFoundError:
        with suppress(OSError), open(os.open("cgroup.procs", os.O_RDONLY, dir_fd=folder), encoding="ascii") as file:
            for pid in map(int, file):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL) if pid else None
    except OSError:  # the group is gone
        pass


def _events(text: bytes) -> dict[str, int]:
    return {name.decode(): int(count) for name, count in (line.split() for line in text.splitlines())}


def _open_folder(path: str, parent: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
