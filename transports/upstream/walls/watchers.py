"""Makes inotify instances for a walled process, and no more than its share: the kernel counts them for a whole user.

A process may close one, or hide it in a message to itself. So the gate enters each in an epoll of its own, which the
kernel removes it from when nobody has it any more, and which says in /proc what is in it.
"""

import errno
import os
import select
from collections.abc import Callable, Iterable
from typing import Final

from transports.upstream.walls.notifications import Listener, Notification
from transports.upstream.walls.refusals import Refused
from transports.upstream.walls.system_calls import call, numbers

__all__ = ["Watchers"]

_ALWAYS: Final = 16
_SHARE: Final = 8
"""One server has an eighth of what its user may have."""


class Watchers:
    """Answers inotify_init(2) of one server."""

    def __init__(self, listener: Listener, refused: Refused) -> None:
        self._listener = listener
        self._refused = refused
        self._open = select.epoll()
        self._most = max(_ALWAYS, _users_limit() // _SHARE)
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
        if self._count() >= self._most:
            self._refused("other", "inotify", f"more than {self._most} instances of one server")
            raise OSError(errno.EMFILE, "too many instances")
        ours = call("inotify_init1", flags | os.O_CLOEXEC)
        try:
            self._open.register(ours, 0)
            self._listener.give(made, ours, closes_on_exec=bool(flags & os.O_CLOEXEC))
        finally:
            os.close(ours)

    def _count(self) -> int:
        with open(f"/proc/self/fdinfo/{self._open.fileno()}", "rb") as file:
            return sum(line.startswith(b"tfd:") for line in file)


def _users_limit() -> int:
    try:
        with open("/proc/sys/fs/inotify/max_user_instances", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
