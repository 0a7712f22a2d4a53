"""Find the part of the cgroup tree (version 2) that is delegated to this gateway, and prepare it for its servers.

The gateway changes nothing outside of this part, its *subtree*. A cgroup whose children have limits must not contain
processes itself. So the processes in the subtree's root, among them the gateway, are moved to a leaf of the subtree.
The cgroups of servers (`cgroups.py`) are made beside this leaf.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from transports.upstream.walls.raw_system_calls import closing_fd
from transports.upstream.walls.wall_specification import Limits

OFF: Final = "off"
LEAF: Final = "mcp-gateway"
"""The name of the cgroup for the gateway's own processes."""

CONTROLLERS: Final = ("memory", "pids", "cpu")
_MARKS: Final = ("user.delegate", "trusted.delegate")
"""Attributes of a cgroup by which systemd shows that it is delegated (`Delegate=`): the first since systemd 251, the
second before."""
_ROUNDS: Final = 50
"""Maximum number of attempts to move all processes out of a cgroup while others start in it."""
LOCK_WITHIN_S: Final = 5.0
_PAUSE_S: Final = 0.01
_OWN_WEIGHT: Final = 1_000
"""The CPU weight of the gateway. All its servers together have 100, the kernel's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """The result of the search for the subtree of cgroups that is delegated to the gateway."""

    root: str = ""
    """The folder of the subtree; empty if there is none."""
    controllers: tuple[str, ...] = ()
    """Those of `memory`, `pids` and `cpu` that cgroups in the subtree can have."""
    lacks: str = ""
    """The reason why there is no subtree."""

    def missing(self, limits: Limits) -> Iterator[str]:
        """Yield a sentence for each of these limits that cannot be enforced here. Limits that are only defaults of a
        profile are left out."""
        if limits.total_memory_bytes is not None and limits.total_is_set and "memory" not in self.controllers:
            most = f"{limits.total_memory_bytes >> 20} MiB of memory"
            yield f"Its processes may have more than {most} together (total_memory_mb): {self._without('memory')}."
        if limits.processors is not None and "cpu" not in self.controllers:
            most = f"the time of {limits.processors:g} processors"
            yield f"Its processes may use more than {most} together (processors): {self._without('cpu')}."

    def _without(self, controller: str) -> str:
        return self.lacks or f"the cgroup {self.root} has no controller {controller!r}"


def find_delegation(setting: str | None = None) -> Delegation:
    """Find the delegated subtree of cgroups, and change nothing. `setting` is a folder that the operator has chosen, or
    `off`. None: the cgroup of this process, if systemd or a container runtime has delegated it."""
    if setting == OFF:
        return Delegation(lacks="gateway.cgroup is off")
    try:
        root = _own_subtree() if setting is None else setting
        _try(root)
        with open(f"{root}/cgroup.controllers", encoding="ascii") as file:
            there = file.read().split()
    except OSError as error:
        return Delegation(lacks=_sentence(error))
    return Delegation(root=root, controllers=tuple(each for each in CONTROLLERS if each in there))


def prepare_delegation(setting: str | None = None) -> Delegation:
    """Find the delegated subtree of cgroups as `find_delegation` does, and prepare it: move the processes in its root
    into the cgroup `LEAF`, and allow limits on the cgroups below. Return it; `lacks` says why it cannot be used, if so.
    May be called again, and by several processes at once."""
    found = find_delegation(setting)
    if not found.root:
        return found
    try:
        with writes_alone(found.root):
            if os.path.exists(f"{found.root}/cgroup.type"):  # every cgroup but the root of the tree has this file
                _vacate(found.root)
            enabled = tuple(each for each in found.controllers if _enable(found.root, each))
            if "cpu" in enabled and os.path.isdir(f"{found.root}/{LEAF}"):
                write(None, f"{found.root}/{LEAF}/cpu.weight", str(_OWN_WEIGHT))
    except OSError as error:
        return Delegation(lacks=f"the cgroup {found.root} cannot be used ({_sentence(error)})")
    return Delegation(root=found.root, controllers=enabled)


@contextlib.contextmanager
def writes_alone(root: str) -> Iterator[None]:
    """Lock the subtree with the folder `root` during a `with` block, so that no other gateway changes it. Wait for the
    lock. After `LOCK_WITHIN_S`, go on without it: a server that can read the folder could lock it, too."""
    with closing_fd(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as held:
        until = time.monotonic() + LOCK_WITHIN_S
        while time.monotonic() < until:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE_S)
        yield


def _vacate(root: str) -> None:
    """Move all processes in the root of the subtree, including this one, into the leaf."""
    leaf = f"{root}/{LEAF}"
    for _ in range(_ROUNDS):
        with open(f"{root}/cgroup.procs", encoding="ascii") as file:
            found = file.read().split()
        if not found:
            return
        if "0" in found:
            raise OSError(errno.EBUSY, "processes of another process namespace are in it")
        os.makedirs(leaf, exist_ok=True)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                write(None, f"{leaf}/cgroup.procs", pid)
    raise OSError(errno.EBUSY, "processes start in it all the time")


def _enable(root: str, controller: str) -> bool:
    """Enable a controller for the cgroups below `root`. Return False if the kernel refuses, as with a real-time
    scheduler in use."""
    try:
        write(None, f"{root}/cgroup.subtree_control", f"+{controller}")
    except OSError:
        return False
    return True


def write(folder: int | None, name: str, text: str) -> None:
    """Write to a file of a cgroup. `name` is the file's name in `folder` (a descriptor), or its whole path if there is
    no folder. Raises `OSError`."""
    with closing_fd(os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)) as file:
        os.write(file, text.encode())


def _try(root: str) -> None:
    """Test if this user may make cgroups in the folder `root`. Raises `OSError` if not."""
    if not os.path.exists(f"{root}/cgroup.controllers"):
        raise OSError(errno.ENOENT, f"{root} is not a cgroup of version 2")
    for path in (root, f"{root}/cgroup.procs", f"{root}/cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, f"user {os.geteuid()} may not write to {path}")


def _own_subtree() -> str:
    """Return the folder of the cgroup that is delegated to this process. Raises `OSError` if none is."""
    inside = _own_cgroup()
    folder = _folder_of(inside)
    if os.path.basename(inside) == LEAF:  # moved there by the gateway that started here before
        return os.path.dirname(folder)
    for path, candidate in ((inside, folder), (os.path.dirname(inside), os.path.dirname(folder))):
        if _is_marked(candidate) or (path == inside == "/" and os.path.exists(f"{folder}/cgroup.type")):
            return candidate
    raise OSError(errno.EPERM, f"the cgroup {inside} is not delegated to the gateway")


def own_cgroup_folders() -> list[str]:
    """Return the folders of this process's cgroup and of its visible ancestors, the own one first."""
    try:
        inside = _own_cgroup()
        folder = _folder_of(inside)
    except OSError:
        return []
    found = [folder]
    while inside.strip("/") and os.path.exists(f"{os.path.dirname(found[-1])}/cgroup.controllers"):
        inside = os.path.dirname(inside)
        found.append(os.path.dirname(found[-1]))
    return found


def _is_marked(folder: str) -> bool:
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, mark) == b"1":
                return True
    return False


def _own_cgroup() -> str:
    """Return the path of this process's cgroup, as seen in its cgroup namespace."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if line.startswith("0::"):
                return line[3:].rstrip("\n")
    raise OSError(errno.ENOENT, "the system has no cgroups of version 2")


def _folder_of(inside: str) -> str:
    """Return the folder in the file system that shows the cgroup `inside` (a path in the cgroup namespace). Raises
    `OSError` if there is none."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields, _, kind = line.partition(" - ")
            if not kind.startswith("cgroup2 "):
                continue
            mounted, at = fields.split()[3:5]
            if mounted == "/" or inside == mounted or inside.startswith(f"{mounted}/"):
                return os.path.normpath(at + "/" + inside[len(mounted.rstrip("/")) :])
    raise OSError(errno.ENOENT, f"no folder shows the cgroup {inside}")


def _sentence(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{what}: {error.filename}" if error.filename else what
