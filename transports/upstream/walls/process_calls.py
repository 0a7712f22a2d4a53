"""Decides which processes a walled one may name.

These calls carry numbers only, so the kernel makes them itself once they are allowed.
"""

import errno
import os
from collections.abc import Iterable
from typing import Final

from transports.upstream.process_tree import below, parent
from transports.upstream.walls.notifications import Listener, Notification
from transports.upstream.walls.refusals import Refused
from transports.upstream.walls.seccomp import OTHERS, SIGNALS
from transports.upstream.walls.system_calls import numbers

__all__ = ["ProcessCalls"]

_MAX_DEPTH: Final = 10_000  # a chain of parents longer than that is a circle of reused numbers


class ProcessCalls:
    """Answers the calls of one server, from its reaper."""

    def __init__(self, listener: Listener, refused: Refused) -> None:
        self._listener = listener
        self._refused = refused
        table = numbers()
        self._named = {
            table[name]: (name, argument) for name, argument in {**OTHERS, **SIGNALS}.items() if name in table
        }

    @property
    def numbers(self) -> Iterable[int]:
        """The system calls that are decided here."""
        return self._named.keys()

    def decide(self, made: Notification) -> None:
        """Let the kernel make the call, or refuse it."""
        error = self._name(made)
        if error:
            self._listener.answer(made, error)
        else:
            self._listener.proceed(made)

    def _name(self, made: Notification) -> int:
        name, argument = self._named[made.number]
        pid = made.integer(argument)
        if pid > 0 and parent(pid) is None:
            return errno.ESRCH
        if _is_below(pid, os.getpid()) if pid > 0 else _is_group_below(-pid):
            return 0
        self._refused("process", name, "a process that the server did not start")
        return errno.EPERM


def _is_below(pid: int, ancestor: int) -> bool:
    """True if a process or thread was started, directly or not, by the ancestor."""
    for _ in range(_MAX_DEPTH):
        above = parent(pid)
        if above == ancestor:
            return True
        if not above:
            return False
        pid = above
    return False


def _is_group_below(group: int) -> bool:
    """True if a process below this one is in the group. Then all of it are: groups do not cross process sessions."""
    for pid in below([os.getpid()])[1:] if group > 1 else ():
        try:
            if os.getpgid(pid) == group:
                return True
        except OSError:  # it has just ended
            continue
    return False
