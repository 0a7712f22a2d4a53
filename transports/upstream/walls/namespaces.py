"""A server's own view of the system: processes, mounts and shared memory of its own, where the kernel allows it.

The reaper is the first process of the namespaces, so the kernel ends everything in them with it. It sees what its
server sees: its own /proc, an empty /tmp and /dev/shm, and all else read-only but what was granted to be written. A
server that may reach nothing has no network at all.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

from transports.upstream.walls.paths import open_path
from transports.upstream.walls.spec import Grant, Reach, Walls
from transports.upstream.walls.system_calls import call, dumpable, numbers

__all__ = ["fork_apart", "is_apart", "own_grants", "separate", "why_not"]

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES = 0x0002_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000
_NEW_NETWORK: Final = 0x4000_0000

_NO_SET_UID, _NO_DEVICES, _NO_EXECUTE, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
_READ_ONLY, _HERE, _EMPTY_PATH, _BELOW_TOO = 0x1, -100, 0x1000, 0x8000  # of mount_setattr

OWN_FOLDERS: Final = ("/dev/shm", "/tmp")
"""Empty, and in memory."""

_OWN_BYTES: Final = 256 << 20
_OWN_FILES: Final = 65_536


def own_grants() -> tuple[Grant, ...]:
    """What a process in namespaces of its own may use because nobody else has it."""
    return tuple(Grant(path=folder, mode="rw", optional=True) for folder in OWN_FOLDERS)


def is_apart() -> bool:
    """True in a reaper that is the first process of its namespaces."""
    return os.getpid() == 1


def fork_apart() -> int:
    """As `os.fork`, but the child is the first process of namespaces of its own, with the same user as before.

    Raises:
        OSError: the kernel, or the container around us, refuses.
    """
    user, group = os.geteuid(), os.getegid()
    libc: Any = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, as the child is in the middle of it
    kinds = _NEW_USER | _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC
    given = [ctypes.c_long(each) for each in (numbers()["clone"], kinds | signal.SIGCHLD, 0, 0, 0, 0)]
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = libc.syscall(*given)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        try:
            _settle(user, group)
        except OSError as error:  # nothing of the parent may go on in here
            os._exit(error.errno or errno.EIO)
        return 0
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid == -1:
        raise OSError(number, os.strerror(number))
    return pid


def _settle(user: int, group: int) -> None:
    """Keep the user's and the group's numbers in the new user namespace."""
    with dumpable():  # it knows no secrets yet
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            file = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(file, text.encode())
            os.close(file)


def separate(walls: Walls) -> None:
    """Arrange the mounts of this process, which is the first of its namespaces, for the server that it will start.

    Raises:
        OSError: the kernel refuses, or a granted path does not exist. The file name of the error is the path.
    """
    if walls.reach == Reach(refused=() if walls.reach is None else walls.reach.refused):
        with suppress(OSError):  # a limit is reached; what it could connect to is refused all the same
            call("unshare", _NEW_NETWORK)  # /proc/net has nothing of the machine
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    targets = list(_targets(walls))
    _set_read_only(_HERE, "/", on=True, flags=_BELOW_TOO)
    _mount("proc", "/proc", "proc", _NO_SET_UID | _NO_DEVICES | _NO_EXECUTE)
    memory = f"mode=1777,size={_OWN_BYTES},nr_inodes={_OWN_FILES}"
    covered = [folder for folder in OWN_FOLDERS if os.path.isdir(folder)]
    temporary = None if walls.temporary is None else open_path(walls.temporary)
    for folder in covered:
        if folder == "/tmp" and temporary is not None:
            _bind(temporary, folder, writable=True)
        else:
            _mount("tmpfs", folder, "tmpfs", _NO_SET_UID | _NO_DEVICES, memory)
    for grant, target in targets:
        if _is_covered(grant.path, covered):
            _make_target(grant.path, is_folder=stat.S_ISDIR(os.fstat(target).st_mode))
        _bind(target, grant.path, writable="w" in grant.mode)
        os.close(target)
    if temporary is not None:
        os.close(temporary)


def _targets(walls: Walls) -> Iterator[tuple[Grant, int]]:
    """What has to be mounted: what may be written, and what the own folders would cover. Not what may only be listed:
    below an own folder, all that is mounted can be read."""
    for grant in sorted(walls.grants, key=lambda grant: grant.path):
        if "w" in grant.mode or (grant.mode != "l" and _is_covered(grant.path, OWN_FOLDERS)):
            try:
                target = open_path(grant.path)
            except FileNotFoundError:
                if grant.optional:
                    continue
                raise
            kind = os.fstat(target).st_mode
            if grant.path in OWN_FOLDERS or not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
                os.close(target)  # devices can be written on read-only mounts
            else:
                yield grant, target


def _is_covered(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)


def _make_target(path: str, *, is_folder: bool) -> None:
    if is_folder:
        os.makedirs(path, 0o755, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _bind(target: int, path: str, *, writable: bool) -> None:
    _mount(f"/proc/self/fd/{target}", path, None, _BIND | _RECURSIVE)
    if writable:
        mounted = open_path(path)
        try:
            _set_read_only(mounted, "", on=False, flags=_EMPTY_PATH)
        finally:
            os.close(mounted)


def _mount(source: str | None, path: str, kind: str | None, flags: int, data: str | None = None) -> None:
    strings = [None if each is None else os.fsencode(each) for each in (source, path, kind)]
    try:
        call("mount", *strings, flags, None if data is None else data.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _set_read_only(at: int, path: str, *, on: bool, flags: int) -> None:
    change = (_READ_ONLY, 0) if on else (0, _READ_ONLY)
    call("mount_setattr", at, os.fsencode(path), flags, struct.pack("=4Q", *change, 0, 0), 32)


_known: Final[list[str]] = []
_PASSING: Final = (errno.ENOSPC, errno.EUSERS, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""A limit is reached, perhaps for a moment only."""


def why_not() -> str:
    """Why namespaces cannot be used here, found out by using them in a process of its own. Empty if they can. Found out
    once, but for what may be otherwise at the next start."""
    if not _known:
        code, found = _tried()
        if code in _PASSING:
            return found
        _known.append(found)
    return _known[0]


def _tried() -> tuple[int, str]:
    """The error with which namespaces could not be used, 0 for none, and the sentence for it."""
    try:
        pid = fork_apart()
    except OSError as error:
        return error.errno or errno.EIO, f"namespaces are refused ({error.strerror})"
    if pid == 0:
        _end_with(lambda: separate(Walls(profile="", grants=())))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return 0, ""
    return code, f"namespaces cannot be used ({os.strerror(code) if code > 0 else f'signal {-code}'})"


def _end_with(work: Callable[[], None]) -> NoReturn:
    """End this process after some work, with the errno of its failure as exit code."""
    code = errno.EIO
    try:
        work()
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    finally:
        os._exit(code)
