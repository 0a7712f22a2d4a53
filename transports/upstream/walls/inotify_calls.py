"""Make inotify instances and their watches for a walled process, up to a limit for each server: the kernel's own limits
are for all processes of a user."""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
from collections.abc import Callable
from typing import Any, Final

from transports.upstream.walls.gate_reports import Refused
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener, duplicate
from transports.upstream.walls.system_calls import call, closing_fd, machine, numbers

_ADD, _MODIFY = 1, 3  # linux/eventpoll.h
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


class Instance:
    """An inotify instance. `watches` is at least the number of its watches. `used` is the thread, and its descriptor,
    with which the instance was last used."""

    __slots__ = ("used", "watches")

    def __init__(self) -> None:
        self.watches = 0
        self.used: tuple[int, int] | None = None

    def count(self, fd: int) -> None:
        """Count the watches anew. `fd` is this process's own descriptor for the instance. Raises `OSError`."""
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
        """Return the instances that still exist, and forget the others."""
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
        """Return the instance of this process's own descriptor `fd`. Raises `OSError` (ENOENT, EPERM) if it is not an
        instance of this server."""
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
"""Divisor: one server may have an eighth of its user's limit."""


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
        """Answer a system call. An error never ends the gate."""
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
        """Count the watches of all instances anew: some have ended with their files, or were removed. An instance keeps
        its count if it cannot be found by its last use."""
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
