"""Make system calls for a sandboxed process that change or watch a file without opening it: chmod, utime, inotify.

Landlock does not restrict these calls: they could reach every file of the user, also of other servers and of the
gateway. So the gate (a thread beside the process) opens the file, only to name it (O_PATH), checks the path of the
opened file, and makes the call on this descriptor. If the process swaps a part of the path meanwhile, nothing
changes."""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from transports.upstream.walls.gate_reports import Refused
from transports.upstream.walls.intercepted_calls import (
    InterceptedCall,
    Listener,
    duplicate,
    read_memory,
    read_path,
    signed,
)
from transports.upstream.walls.raw_system_calls import call, closing_fd, machine, numbers
from transports.upstream.walls.resolved_paths import as_meant, is_within
from transports.upstream.walls.wall_specification import Grant

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_IN_DONT_FOLLOW: Final = 0x0200_0000
_TIMES: Final = struct.Struct("=4q")  # two times: seconds, and nanoseconds or microseconds
_OLD_TIMES: Final = struct.Struct("=2q")
_HAS_OWN_PLACES: Final = (b"/proc", b"/dev")
_WITHOUT_A_PATH: Final = ("pipe:", "socket:", "anon_inode:", "/memfd:")  # as readlink shows them


class FileCalls:
    """Allow or refuse one server's system calls that change or watch a file without opening it, by the server's grants.
    `numbers` are the system calls that are decided here."""

    def __init__(self, grants: Sequence[Grant], listener: Listener, refused: Refused, inotify: "InotifyCalls") -> None:
        self._listener = listener
        self._refused = refused
        self._inotify = inotify
        self._readable = tuple(grant.path for grant in grants)
        self._writable = tuple(grant.path for grant in grants if "w" in grant.mode)
        handlers: dict[str, Callable[[InterceptedCall], int]] = {
            "chmod": lambda made: self._chmod(made, (_AT_FDCWD, made.arguments[0], 0), made.arguments[1]),
            "fchmod": self._fchmod,
            "fchmodat": lambda made: self._chmod(made, (*made.arguments[:2], 0), made.arguments[2]),
            "fchmodat2": lambda made: self._chmod(made, (*made.arguments[:2], made.arguments[3]), made.arguments[2]),
            "utime": self._utime,
            "utimes": lambda made: self._utimes(made, _AT_FDCWD, made.arguments[0], made.arguments[1]),
            "futimesat": lambda made: self._utimes(made, made.arguments[0], made.arguments[1], made.arguments[2]),
            "utimensat": self._utimensat,
            "inotify_add_watch": self._watch,
            "truncate": self._truncate,
        }
        table = numbers()
        self._handlers = {table[name]: handler for name, handler in handlers.items() if name in table}
        self.numbers = self._handlers.keys()

    def decide(self, made: InterceptedCall) -> None:
        """Decide on a system call, make it if it is allowed, and answer it. No error ends the gate.

        The calling thread may have ended, and its id may belong to another thread. Then the memory of that other thread
        is read. But only a file is changed that this server may change anyway, and the answer is discarded."""
        try:
            value = self._handlers[made.number](made)
        except OSError as error:
            self._listener.answer(made, error.errno or errno.EACCES)
        except (ValueError, OverflowError):
            self._listener.answer(made, errno.EINVAL)
        else:
            self._listener.succeed(made, value)

    def _chmod(self, made: InterceptedCall, named: tuple[int, ...], mode: int) -> int:
        opened, is_named = self._named(made, *named)
        with closing_fd(opened) as target:
            if stat.S_ISLNK(os.fstat(target).st_mode):
                raise OSError(errno.EOPNOTSUPP, "a symlink has no mode")
            self._check(target, self._writable, is_named=is_named)
            self._check_mode(target, mode)
            os.chmod(_by_descriptor(target), mode & 0o7777)
        return 0

    def _truncate(self, made: InterceptedCall) -> int:
        with closing_fd(self._named(made, _AT_FDCWD, made.arguments[0], 0)[0]) as target:
            self._check(target, self._writable)
            os.truncate(_by_descriptor(target), ctypes.c_long(made.arguments[1]).value)
        return 0

    def _fchmod(self, made: InterceptedCall) -> int:
        with closing_fd(duplicate(made.thread, made.arguments[0])) as target:
            self._check(target, self._writable, is_named=False)
            self._check_mode(target, made.arguments[1])
            os.fchmod(target, made.arguments[1] & 0o7777)
        return 0

    def _utimensat(self, made: InterceptedCall) -> int:
        folder, path, pointer, flags = made.arguments[:4]
        times = read_memory(made.thread, pointer, _TIMES.size) if pointer else None
        return self._set_times(made, (folder, path, flags), times)

    def _utimes(self, made: InterceptedCall, folder: int, path: int, pointer: int) -> int:
        times = None
        if pointer:
            accessed, accessed_us, modified, modified_us = _TIMES.unpack(read_memory(made.thread, pointer, _TIMES.size))
            if not (0 <= accessed_us < 1_000_000 and 0 <= modified_us < 1_000_000):
                raise OSError(errno.EINVAL, "microseconds")
            times = _TIMES.pack(accessed, 1_000 * accessed_us, modified, 1_000 * modified_us)
        return self._set_times(made, (folder, path, 0), times)

    def _utime(self, made: InterceptedCall) -> int:
        path, pointer = made.arguments[:2]
        times = None
        if pointer:
            accessed, modified = _OLD_TIMES.unpack(read_memory(made.thread, pointer, _OLD_TIMES.size))
            times = _TIMES.pack(accessed, 0, modified, 0)
        return self._set_times(made, (_AT_FDCWD, path, 0), times)

    def _set_times(self, made: InterceptedCall, named: tuple[int, int, int], times: bytes | None) -> int:
        folder, path, flags = named
        if path:
            opened, is_named = self._named(made, folder, path, flags)
        else:  # as futimens() has it: the descriptor itself
            opened, is_named = duplicate(made.thread, folder), False
        with closing_fd(opened) as target:
            self._check(target, self._writable, is_named=is_named)
            return call("utimensat", _AT_FDCWD, os.fsencode(_by_descriptor(target)), times, 0)

    def _watch(self, made: InterceptedCall) -> int:
        watcher, path, mask = made.arguments[:3]
        flags = _AT_SYMLINK_NOFOLLOW if mask & _IN_DONT_FOLLOW else 0
        with closing_fd(self._named(made, _AT_FDCWD, path, flags)[0]) as target:
            self._check(target, self._readable)
            name = os.fsencode(_by_descriptor(target))
            return self._inotify.watch(made, watcher, name, mask & 0xFFFF_FFFF & ~_IN_DONT_FOLLOW)

    @staticmethod
    def _named(made: InterceptedCall, folder: int, pointer: int, flags: int) -> tuple[int, bool]:
        """Open the file that a system call names, only to name it (O_PATH). Return the descriptor, and False if the
        call names the file by one of the process's own descriptors, otherwise True. `folder`, `pointer` (to the path)
        and `flags` are arguments of the call, as in openat(2)."""
        path = read_path(made.thread, pointer)
        if not path and flags & _AT_EMPTY_PATH:
            return duplicate(made.thread, folder), False
        if not path:
            raise OSError(errno.ENOENT, "an empty path")
        how = os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & _AT_SYMLINK_NOFOLLOW else 0)
        own = b"/proc/%d/fd/" % made.thread
        if path.startswith(b"/"):
            return os.open(path, how), not is_descriptor(path, own)
        if signed(folder) == _AT_FDCWD:
            opened = os.open(f"/proc/{made.thread}/cwd", os.O_PATH | os.O_CLOEXEC)
        else:
            opened = duplicate(made.thread, folder)
        with closing_fd(opened) as base:
            where = os.fsencode(os.readlink(_by_descriptor(base)))
            if where in _HAS_OWN_PLACES:
                path = as_meant(made.thread, where + b"/" + path)
                return os.open(path, how), not is_descriptor(path, own)
            return os.open(path, how, dir_fd=base), True

    def _check(self, target: int, granted: Sequence[str], *, is_named: bool = True) -> None:
        """Raise `OSError` unless the file behind the descriptor `target` is within the paths `granted`. Also report the
        refusal if the file has a path. If `is_named` is False, a file without a path is also allowed. A device is
        always refused, even if the server may write to it, because others use the device as well."""
        path = os.readlink(_by_descriptor(target))
        kind = os.fstat(target).st_mode
        if not (stat.S_ISCHR(kind) or stat.S_ISBLK(kind)) and (
            is_within(path, granted) or (not is_named and path.startswith(_WITHOUT_A_PATH))
        ):
            return
        if path.startswith("/"):  # else no setting can name it
            self._refused("file", path, "not granted" if granted is self._readable else "not granted to be written")
        raise OSError(errno.EACCES, "not granted")

    def _check_mode(self, target: int, mode: int) -> None:
        """Check the mode that the file behind the descriptor `target` is to have. Raise `OSError` for a mode that makes
        a program run as the gateway's user or group, whoever starts it (setuid, setgid).

        On a folder the group's bit is allowed: it says which group new files have.
        """
        is_folder = stat.S_ISDIR(os.fstat(target).st_mode)
        if mode & (stat.S_ISUID if is_folder else stat.S_ISUID | stat.S_ISGID):
            self._refused("file", os.readlink(_by_descriptor(target)), "a setuid or setgid bit")
            raise OSError(errno.EPERM, "a setuid or setgid bit")


def is_descriptor(path: bytes, own: bytes) -> bool:
    """Return True if the path is exactly that of a descriptor in the folder `own` of /proc. With a `..` behind it, the
    path would lead elsewhere."""
    return path.startswith(own) and path[len(own) :].isdigit()


def _by_descriptor(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


_ADD, _MODIFY = 1, 3  # linux/eventpoll.h
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


class Instance:
    """An inotify instance of a server."""

    __slots__ = ("used", "watches")

    def __init__(self) -> None:
        self.watches = 0
        """An upper bound of the number of its watches."""
        self.used: tuple[int, int] | None = None
        """The thread that used the instance last, and the descriptor by which that thread knows it; None: not used."""

    def count(self, fd: int) -> None:
        """Count the instance's watches again. `fd` is this process's own descriptor for the instance. Raises
        `OSError`."""
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
            self.watches = sum(line.startswith(b"inotify wd:") for line in file)


class Instances:
    """The inotify instances of one server that still exist.

    The server's processes can change every name of an instance, and can hide it in a message to themselves. So each
    instance is added to an epoll, from which the kernel removes it when no process has it any more. Each entry gets a
    number from this class, which /proc shows. An epoll finds an entry by the file and by the number of the descriptor
    that was added, so all entries are added under one descriptor number.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._entered = fcntl.fcntl(self._epoll.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)
        """The descriptor number of all entries. Between uses it is a duplicate of the epoll's descriptor."""
        self._known: dict[int, Instance] = {}
        self._last = 0

    def present(self) -> list[Instance]:
        """Return the instances that still exist, and forget those that do not."""
        there = self._there()
        self._known = {number: instance for number, instance in self._known.items() if number in there}
        return [*self._known.values()]

    def enter(self, fd: int) -> None:
        """Add a new instance, given a descriptor of it. Raises `OSError`."""
        self._known[self._numbered(fd, _ADD)] = Instance()

    @property
    def watches(self) -> int:
        """Return the number of watches of all instances that existed at the last check."""
        return sum(instance.watches for instance in self._known.values())

    def find(self, fd: int) -> Instance:
        """Return the instance that this process's own descriptor `fd` leads to. Raises `OSError` (ENOENT, EPERM) if
        `fd` does not lead to an instance of this server."""
        number = self._numbered(fd, _MODIFY)
        there = self._there()
        gone = [self._known.pop(each) for each in list(self._known) if each not in there]
        # Its old number is gone, like those of instances closed meanwhile: take the highest count of them.
        found = self._known[number] = max(gone, key=lambda each: each.watches, default=Instance())
        return found

    def _numbered(self, fd: int, how: int) -> int:
        self._last += 1
        event = (_PackedEvent if machine() == "x86_64" else _Event)(events=0, data=self._last)
        os.dup2(fd, self._entered, inheritable=False)
        try:
            if _libc.epoll_ctl(self._epoll.fileno(), how, self._entered, ctypes.byref(event)):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.dup2(self._epoll.fileno(), self._entered, inheritable=False)
        return self._last

    def _there(self) -> set[int]:
        with open(f"/proc/self/fdinfo/{self._epoll.fileno()}", "rb") as file:
            # tfd:        7 events:        0 data:                1  pos:0 ino:40d sdev:f
            return {int(line.split()[5], 16) for line in file if line.startswith(b"tfd:")}


class _Event(ctypes.Structure):
    """The kernel's `struct epoll_event`."""

    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class _PackedEvent(ctypes.Structure):
    """The kernel's `struct epoll_event` on x86_64, which is packed."""

    _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


_ALWAYS: Final = 16
_ALWAYS_WATCHES: Final = 1_024
_SHARE: Final = 8
"""One server may use the user's limits of inotify divided by this number."""


class InotifyCalls:
    """Answer inotify_init(2) of one server, and add its watches. `numbers` are the system calls that are decided
    here."""

    def __init__(self, listener: Listener, refused: Refused) -> None:
        self._listener = listener
        self._refused = refused
        self._instances = Instances()
        self._most = max(_ALWAYS, _users_limit("max_user_instances") // _SHARE)
        self._most_watches = max(_ALWAYS_WATCHES, _users_limit("max_user_watches") // _SHARE)
        table = numbers()
        makers: dict[str, Callable[[InterceptedCall], int]] = {
            "inotify_init": lambda made: 0,
            "inotify_init1": lambda made: made.arguments[0] & 0xFFFF_FFFF,
        }
        self._flags = {table[name]: flags for name, flags in makers.items() if name in table}
        self.numbers = self._flags.keys()

    def decide(self, made: InterceptedCall) -> None:
        """Decide on a system call of inotify, and answer it. No error ends the gate."""
        try:
            self._make(made, self._flags[made.number](made))
        except OSError as error:
            self._listener.answer(made, error.errno or errno.EMFILE)

    def _make(self, made: InterceptedCall, flags: int) -> None:
        if len(self._instances.present()) >= self._most:
            self._refused("other", "inotify", f"more than {self._most} instances of one server")
            raise OSError(errno.EMFILE, "too many instances")
        with closing_fd(call("inotify_init1", flags | os.O_CLOEXEC)) as ours:
            self._instances.enter(ours)
            self._listener.give(made, ours, closes_on_exec=bool(flags & os.O_CLOEXEC))

    def watch(self, made: InterceptedCall, watcher: int, path: bytes, mask: int) -> int:
        """Add a watch to the instance behind the process's descriptor `watcher`, and return the watch's number. Raises
        `OSError`: ENOSPC beyond the limit of one server."""
        with closing_fd(duplicate(made.thread, watcher)) as ours:
            instance = self._found(ours)
            instance.used = (made.thread, watcher)
            if self._instances.watches >= self._most_watches:
                instance.count(ours)
                if self._instances.watches >= self._most_watches:
                    self._count_again()
                if self._instances.watches >= self._most_watches:
                    self._refused("other", "inotify", f"more than {self._most_watches} watches of one server")
                    raise OSError(errno.ENOSPC, "too many watches")
            added = call("inotify_add_watch", ours, path, mask)
            instance.watches += 1  # even if it is not new: when there seem to be too many, they are counted anew
            return added

    def _count_again(self) -> None:
        """Count the watches of all instances again, because some have ended with their files or were removed. An
        instance keeps its count if it cannot be found by its last use."""
        for instance in self._instances.present():
            if instance.used is not None:
                with contextlib.suppress(OSError), closing_fd(duplicate(*instance.used)) as ours:
                    self._found(ours).count(ours)

    def _found(self, fd: int) -> Instance:
        try:
            return self._instances.find(fd)
        except OSError:
            raise OSError(errno.EINVAL, "no inotify instance of this server") from None


def _users_limit(name: str) -> int:
    try:
        with open(f"/proc/sys/fs/inotify/{name}", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
