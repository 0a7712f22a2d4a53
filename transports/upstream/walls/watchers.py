"""Makes inotify instances and their watches for a walled process, no more than its share: the kernel counts both for a
whole user.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from typing import Final

from transports.upstream.walls.instances import Instance, Instances
from transports.upstream.walls.notifications import Listener, Notification, duplicate
from transports.upstream.walls.refusals import Refused
from transports.upstream.walls.system_calls import call, numbers

__all__ = ["Watchers"]

_ALWAYS: Final = 16
_ALWAYS_WATCHES: Final = 1_024
_SHARE: Final = 8
"""One server has an eighth of what its user may have."""


class Watchers:
    """Answers inotify_init(2) of one server, and adds its watches."""

    def __init__(self, listener: Listener, refused: Refused) -> None:
        self._listener = listener
        self._refused = refused
        self._instances = Instances()
        self._most = max(_ALWAYS, _users_limit("max_user_instances") // _SHARE)
        self._most_watches = max(_ALWAYS_WATCHES, _users_limit("max_user_watches") // _SHARE)
        table = numbers()
        makers: dict[str, Callable[[Notification], int]] = {
            "inotify_init": lambda made: 0,
            "inotify_init1": lambda made: made.arguments[0] & 0xFFFF_FFFF,
        }
        self._flags = {table[name]: flags for name, flags in makers.items() if name in table}

    @property
    def numbers(self) -> Iterable[int]:
        """The system calls that are answered here."""
        return self._flags

    def decide(self, made: Notification) -> None:
        """Answer the call. No error of a call ends the gate."""
        try:
            self._make(made, self._flags[made.number](made))
        except OSError as error:
            self._listener.answer(made, error.errno or errno.EMFILE)

    def _make(self, made: Notification, flags: int) -> None:
        if len(self._instances.present()) >= self._most:
            self._refused("other", "inotify", f"more than {self._most} instances of one server")
            raise OSError(errno.EMFILE, "too many instances")
        ours = call("inotify_init1", flags | os.O_CLOEXEC)
        try:
            self._instances.enter(ours)
            self._listener.give(made, ours, closes_on_exec=bool(flags & os.O_CLOEXEC))
        finally:
            os.close(ours)

    def watch(self, made: Notification, watcher: int, path: bytes, mask: int) -> int:
        """Add a watch to the instance that the process has at that descriptor. Raises `OSError`: ENOSPC beyond the
        share of one server."""
        ours = duplicate(made.thread, watcher)
        try:
            instance = self._found(ours)
            instance.use(made.thread, watcher)
            if self._instances.watches >= self._most_watches:
                instance.count(ours)
                if self._instances.watches >= self._most_watches:
                    self._count_again()
                if self._instances.watches >= self._most_watches:
                    self._refused("other", "inotify", f"more than {self._most_watches} watches of one server")
                    raise OSError(errno.ENOSPC, "too many watches")
            added = call("inotify_add_watch", ours, path, mask)
            instance.add_watch()
            return added
        finally:
            os.close(ours)

    def _count_again(self) -> None:
        """Watches go with their files, and when a process removes them. One that nobody has where it was used last
        keeps what it had."""
        for instance in self._instances.present():
            if instance.used is not None:
                with contextlib.suppress(OSError):
                    ours = duplicate(*instance.used)
                    try:
                        self._found(ours).count(ours)
                    finally:
                        os.close(ours)

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
