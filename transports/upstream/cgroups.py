"""Give each server a cgroup (version 2): limits for all its processes together, and one order that ends them all.

Part of the program `fork_server.py`, which has a folder beside the gateway's leaf (`cgroup_delegation.py`). In it, the
reaper of each server with walls makes one group. The server is in its group from its first instruction on; the reaper
is not. The folder is locked as long as the fork server or one of its reapers lives. A folder without a lock was left
behind by a gateway that was killed. At the next start, what still runs in it is ended, and it is removed.
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
from transports.upstream.walls.build import WallsFailed
from transports.upstream.walls.spec import Limits, Walls
from transports.upstream.walls.system_calls import closing_fd, fork_by

_FOLDER: Final = "mcp-servers."
_PERIOD_US: Final = 100_000
_INTO_CGROUP: Final = 0x2_0000_0000
_NO_CLONE3: Final = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG)
"""Errors of kernels before 5.7, of machines whose system calls are not known, and in containers whose filters cannot
see what clone3 is to do."""
_LEFT_WITHIN_S: Final = 2.0
_REMOVED_WITHIN_S: Final = 0.5
_PAUSE_S: Final = 0.002
_NO_MORE: Final = "no more are started"
_EXCEEDED: Final = "its processes had more together, and were ended"


class Groups:
    """The cgroups of the servers of one fork server. Without a delegated subtree there are none."""

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
        """Keep the next group for this reaper."""
        if self._folder >= 0:
            self._of[reaper] = str(self._next)
            self._next += 1

    def group(self, walls: Walls | None) -> "Group | None":
        """Make the group of this reaper, with the limits of the walls. Return None without walls or without a subtree.

        Raises:
            WallsFailed: a group cannot be made, or the walls are required and nothing enforces their limits.
        """
        if walls is None:
            return None
        if walls.required and (missing := tuple(self._delegation.missing(walls.limits))):
            raise WallsFailed(
                f"The sandbox {walls.profile!r} is required, but cannot be enforced here. {' '.join(missing)}"
            )
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
        """Note that a reaper has ended. If it ended `in_order`, it has removed its group."""
        name = self._of.pop(reaper, None)
        if name is not None and not in_order:
            self._left.add(name)

    def clean(self) -> bool:
        """End and remove the groups of reapers that were killed. Return True if one is still there."""
        for name in tuple(self._left):
            if _removed(self._folder, name):
                self._left.discard(name)
        return bool(self._left)

    def close(self) -> None:
        """Remove the folder. Called when all reapers have ended."""
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
        """Fork like `os.fork`. The child is in the group once it has called `enter`.

        To move a process makes the kernel wait for all its processors, for milliseconds. So the child is born there.
        """
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
        """Put the calling child into the group, before any foreign code runs. Raises `OSError`."""
        if not self._is_cloned:
            write(self._folder, "cgroup.procs", "0")

    def watch(self) -> int:
        """Return a descriptor that poll(2) reports (POLLPRI) when the kernel refuses to start a process; -1 if there is
        no limit. It reports only after a first call of `newly_refused`."""
        if self.most_processes is not None:
            self._pid_events = os.open("pids.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        return self._pid_events

    def newly_refused(self) -> tuple[str, str, str] | None:
        """Return a refusal to report (kind, what, why) if the kernel has refused a process since the last call."""
        before, self._refused = self._refused, _events(os.pread(self._pid_events, 256, 0)).get("max", 0)
        return ("processes", str(self.most_processes), _NO_MORE) if self._refused > before else None

    def last_refusal(self) -> tuple[str, str, str] | None:
        """Return a refusal to report (kind, what, why) if the kernel has ended the processes for their memory."""
        return ("memory", str(self._most_mb), _EXCEEDED) if self._exceeded() else None

    def kill(self) -> None:
        """End every process in the group, even a hidden one, in one step. Kernels before 5.14 need a step for each."""
        _kill(self._folder)

    def end(self) -> str:
        """Remove the group, whose processes have been killed. Return which memory ran out for them; empty if none did.

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
        """Return whether the processes were killed for the group's own limit, and not for one around the group."""
        events = self._memory_events()
        return self._most_mb > 0 and bool(events.get("oom_kill") and events.get("oom"))

    def _memory_events(self) -> dict[str, int]:
        if not self._has_memory:
            return {}
        with closing_fd(os.open("memory.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)) as file:
            return _events(os.read(file, 512))


def _remove_left(root: str) -> None:
    """End the processes that killed gateways have left behind in the subtree, and remove their groups and folders."""
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
    """Remove a group. If the kernel still has processes in it, kill them and return False."""
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
