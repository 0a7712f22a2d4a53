"""Give a server its own view of the system: its own processes, mounts and shared memory, where the kernel allows it.

With all namespaces, the reaper is their first process, so the kernel kills everything in them when the reaper ends. The
reaper sees what its server sees: its own /proc, an empty /tmp and /dev/shm, and everything else read-only, unless it
was granted to be written. The server's network is empty; the gate makes its sockets in the machine's network. With
mounts alone, only /tmp and /dev/shm are the server's own.
"""

import errno
import os
import signal
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NoReturn

from transports.upstream.walls.raw_system_calls import call, closing_fd, dumpable, fork_by
from transports.upstream.walls.resolved_paths import is_within, open_path
from transports.upstream.walls.wall_specification import Grant, Walls

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES = 0x0002_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000
_NEW_NETWORK: Final = 0x4000_0000

_NO_SET_UID, _NO_DEVICES, _NO_EXECUTE, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
_FOLLOWING: Final = 1 << 19  # MS_SLAVE
_READ_ONLY, _HERE, _EMPTY_PATH, _BELOW_TOO = 0x1, -100, 0x1000, 0x8000  # of mount_setattr

OWN_FOLDERS: Final = ("/dev/shm", "/tmp")
"""The folders that a server gets as its own: empty, and in memory."""

_OWN_BYTES: Final = 256 << 20
_OWN_FILES: Final = 65_536


def fork_apart() -> int:
    """Fork like `os.fork`, but make the child the first process of new namespaces, with the same user as before.

    Raises:
        OSError: the kernel, or the container around this process, refuses.
    """
    user, group = os.geteuid(), os.getegid()
    kinds = _NEW_USER | _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC
    pid = fork_by("clone", kinds | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        try:
            _settle(user, group)
        except OSError as error:  # the code of the parent must not go on in the child
            os._exit(error.errno or errno.EIO)
    return pid


def _settle(user: int, group: int) -> None:
    """Make the ids of the user and the group the same in the new user namespace as outside."""
    with dumpable():  # this process knows no secrets yet
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            file = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(file, text.encode())
            os.close(file)


def leave_network() -> None:
    """Move this process to an empty network: /proc/net shows no sockets of the machine. Sockets that it receives from
    others stay in their own network. Raises `OSError`."""
    call("unshare", _NEW_NETWORK)


def own_mounts() -> None:
    """Give this process mounts of its own. Make a user namespace for that only if necessary, because in one, root could
    no longer use the files of others.

    Raises:
        OSError: the kernel, or the container around this process, refuses.
        RuntimeError: the new namespace cannot be used, and this process must not go on.
    """
    try:
        call("unshare", _NEW_MOUNTS)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        if user == 0:
            raise
        call("unshare", _NEW_USER | _NEW_MOUNTS)
        try:
            _settle(user, group)
        except OSError as error:
            raise RuntimeError("a user namespace has no users") from error


def separate(walls: Walls) -> tuple[Grant, ...]:
    """Arrange the mounts of this process and of the reaper, the first process of their namespaces, for the server that
    this process will become. Return grants for the server's own folders.

    Raises:
        OSError: the kernel refuses, or a granted path does not exist. The error's file name is the path.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    targets = list(_targets(walls, OWN_FOLDERS, written=True))
    _set_read_only(_HERE, "/", on=True, flags=_BELOW_TOO)
    _mount_processes()
    return _cover(walls, [folder for folder in OWN_FOLDERS if os.path.isdir(folder)], targets, all_read_only=True)


def place_folders(walls: Walls) -> tuple[Grant, ...]:
    """Mount /tmp and /dev/shm of the server's own, unless the machine's are granted to it, in the mounts that this
    process and the reaper share. Other mounts stay, and follow changes outside. Return grants for these folders. Raises
    `OSError`."""
    _mount(None, "/", None, _RECURSIVE | _FOLLOWING)
    folders = [folder for folder in OWN_FOLDERS if os.path.isdir(folder) and not _is_wanted(walls, folder)]
    return _cover(walls, folders, list(_targets(walls, folders, written=False)), all_read_only=False)


def _is_wanted(walls: Walls, folder: str) -> bool:
    """Return True if the machine's folder has to stay: it is granted, or contains a folder whose sockets may be used. A
    folder of sockets cannot be mounted below a server's own folder, because all that is mounted there can be read."""
    above = ("/", os.path.dirname(folder), folder)
    sockets = [path for path in _ungranted_sockets(walls, (folder,)) if os.path.isdir(path)]
    return bool(sockets) or any(grant.path in above and grant.mode != "l" for grant in walls.grants)


def _mount_processes() -> None:
    """Mount a /proc with the processes of the namespace. It hides a process from those that may not inspect it
    (`hidepid`, per mount since Linux 5.8): the server must not see the machine's network in /proc of the reaper."""
    flags = _NO_SET_UID | _NO_DEVICES | _NO_EXECUTE
    try:
        _mount("proc", "/proc", "proc", flags, "hidepid=4")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _mount("proc", "/proc", "proc", flags)


def _cover(
    walls: Walls, folders: list[str], targets: Iterable[tuple[str, str, int]], *, all_read_only: bool
) -> tuple[Grant, ...]:
    """Mount the server's own `folders` (/tmp, /dev/shm) over the machine's, then the `targets` (`_targets`). Return
    grants for the folders. `all_read_only`: all other mounts are read-only already.

    Targets that may only be read are mounted read-only, because Landlock lets the server write everything below its own
    folders.
    """
    memory = f"mode=1777,size={_OWN_BYTES},nr_inodes={_OWN_FILES}"
    temporary = None if walls.temporary is None else open_path(walls.temporary)
    mode = "rw"
    for folder in folders:
        if folder == "/tmp" and temporary is not None and walls.temporary is not None:
            _bind(temporary, folder)
            if all_read_only:
                _set_read_only_at(folder, on=False)
            if not (modes := [grant.mode for grant in walls.grants if is_within(walls.temporary, (grant.path,))]):
                raise ValueError(f"{walls.temporary!r} is not granted")
            mode = modes[0]
        else:
            _mount("tmpfs", folder, "tmpfs", _NO_SET_UID | _NO_DEVICES, memory)
    for path, rights, target in targets:
        if folder := next((folder for folder in folders if _is_covered(path, (folder,))), ""):
            _make_target(folder, path, is_folder=stat.S_ISDIR(os.fstat(target).st_mode))
        with closing_fd(open_path(path)) as place:  # refuses a symlink, which mount(2) would follow
            _bind(target, path, place)
        if all_read_only == ("w" in rights):
            _set_read_only_at(path, on=not all_read_only)
        os.close(target)
    if temporary is not None:
        os.close(temporary)
    return tuple(Grant(path=folder, mode=mode if folder == "/tmp" else "rw", optional=True) for folder in folders)


def _targets(walls: Walls, folders: Iterable[str], *, written: bool) -> Iterator[tuple[str, str, int]]:
    """Yield (path, mode, descriptor) of each file and folder to mount: granted ones that the server's own `folders`
    would cover, and with `written` also those that may be written. Folders that may only be listed are left out,
    because everything that is mounted below an own folder can be read. Sockets come last, if they exist."""
    wanted = [
        grant
        for grant in walls.grants
        if (written and "w" in grant.mode) or (grant.mode != "l" and _is_covered(grant.path, folders))
    ]
    for grant in sorted(wanted, key=lambda grant: grant.path):
        try:
            target = open_path(grant.path)
        except FileNotFoundError:
            if grant.optional:
                continue
            raise
        kind = os.fstat(target).st_mode
        is_device = not (stat.S_ISDIR(kind) or stat.S_ISREG(kind) or _is_covered(grant.path, folders))
        if grant.path in OWN_FOLDERS or is_device:
            os.close(target)  # devices can be written on read-only mounts
        else:
            yield grant.path, grant.mode, target
    for path in _ungranted_sockets(walls, folders):
        with suppress(FileNotFoundError):
            target = open_path(path)
            if stat.S_ISSOCK(os.fstat(target).st_mode):
                yield path, "r", target
            else:
                os.close(target)


def _ungranted_sockets(walls: Walls, folders: Iterable[str]) -> list[str]:
    """Return the sockets in `walls.reach` that the server's own folders would cover, and that no granted folder
    contains."""
    sockets = () if walls.reach is None else walls.reach.sockets
    covered = [path for path in sockets if path in ("/", *folders) or _is_covered(path, folders)]
    granted = [grant.path for grant in walls.grants if grant.mode != "l"] if covered else ()
    return [path for path in covered if not is_within(path, granted)]


def _is_covered(path: str, folders: Iterable[str]) -> bool:
    return path.startswith(tuple(folder + "/" for folder in folders))


def _make_target(folder: str, path: str, *, is_folder: bool) -> None:
    """Create the file or folder at `path`, and those above it, below the server's own `folder`, if they are missing.
    Follow no symlinks: the server may have put some there before it was started again. Raises `OSError`."""
    *above, name = path.removeprefix(folder + "/").split("/")
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        for part in (*above, name) if is_folder else above:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=place)
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = below
        if not is_folder:
            with suppress(FileExistsError):
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=place))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(place)


def _bind(target: int, path: str, place: int | None = None) -> None:
    """Mount the file or folder of the descriptor `target` at `path`. `place`: a descriptor of `path`, if it is open."""
    try:
        _mount(f"/proc/self/fd/{target}", path if place is None else f"/proc/self/fd/{place}", None, _BIND | _RECURSIVE)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _set_read_only_at(path: str, *, on: bool) -> None:
    with closing_fd(open_path(path)) as mounted:
        _set_read_only(mounted, "", on=on, flags=_EMPTY_PATH | _BELOW_TOO * on)


def _mount(source: str | None, path: str, kind: str | None, flags: int, data: str | None = None) -> None:
    strings = [None if each is None else os.fsencode(each) for each in (source, path, kind)]
    try:
        call("mount", *strings, flags, None if data is None else data.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _set_read_only(at: int, path: str, *, on: bool, flags: int) -> None:
    change = (_READ_ONLY, 0) if on else (0, _READ_ONLY)
    call("mount_setattr", at, os.fsencode(path), flags, struct.pack("=4Q", *change, 0, 0), 32)


_known: Final[dict[str, str]] = {}
_PASSING: Final = (errno.ENOSPC, errno.EUSERS, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors that mean that a limit of the system is reached, perhaps only for a moment."""


def why_not() -> str:
    """Return the reason why namespaces cannot be used here; empty if they can. A forked process tries them once. A
    failure that may pass is tried again at the next call."""
    return _once("namespaces", fork_apart, lambda: separate(_NO_WALLS))


def why_shared() -> str:
    """Return the reason why a process cannot have its own mounts (for /tmp and /dev/shm) without other namespaces;
    empty if it can. Found out in the same way as by `why_not`."""

    def work() -> None:
        own_mounts()
        place_folders(_NO_WALLS)

    return _once("mounts", os.fork, work)


_NO_WALLS: Final = Walls(profile="", grants=())


def _once(what: str, fork: Callable[[], int], work: Callable[[], object]) -> str:
    if what not in _known:
        code, found = _tried(what, fork, work)
        if code in _PASSING:
            return found
        _known[what] = found
    return _known[what]


def _tried(what: str, fork: Callable[[], int], work: Callable[[], object]) -> tuple[int, str]:
    """Run `work` in a process that `fork` makes. If that succeeds, return 0 and an empty text. Otherwise return the
    errno of the failure, or minus the number of the signal that ended the process, and a sentence about it that begins
    with `what`."""
    try:
        pid = fork()
    except OSError as error:
        return error.errno or errno.EIO, f"{what} are refused ({error.strerror})"
    if pid == 0:
        _end_with(work)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return 0, ""
    return code, f"{what} cannot be used ({os.strerror(code) if code > 0 else f'signal {-code}'})"


def _end_with(work: Callable[[], object]) -> NoReturn:
    """Run `work`, and end this process with exit code 0, or with the errno of the failure."""
    code = errno.EIO
    try:
        work()
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    finally:
        os._exit(code)
