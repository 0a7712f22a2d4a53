"""Decides which processes a walled one may name, and how many it may start.

These calls carry numbers only, so the kernel makes them itself once they are allowed.
"""

import errno
import os
import time
from collections.abc import Iterable
from typing import Final, Protocol

from transports.upstream.process_tree import below
from transports.upstream.walls.notifications import Listener, Notification
from transports.upstream.walls.seccomp import OTHERS, SIGNALS
from transports.upstream.walls.system_calls import numbers

__all__ = ["ProcessCalls"]

_START_S: Final = 0.02  # until a process that may be started is there, on most machines
_MAX_DEPTH: Final = 10_000  # a chain of parents longer than that is a circle of reused numbers


class Refused(Protocol):
    def __call__(self, kind: str, what: str, why: str) -> None: ...


class ProcessCalls:
    """Answers the calls of one server, from its reaper. `most`: processes and threads at a time, or None."""

    def __init__(self, most: int | None, listener: Listener, refused: Refused) -> None:
        self._most = most
        self._listener = listener
        self._refused = refused
        self._free = 0  # how many may still start before they are counted again
        self._counted = 0  # how many were free when they were last counted
        table = numbers()
        self._named = {
            table[name]: (name, argument) for name, argument in {**OTHERS, **SIGNALS}.items() if name in table
        }
        self._starts = {table[name] for name in ("clone", "fork", "vfork") if name in table}

    @property
    def numbers(self) -> Iterable[int]:
        """The system calls that are decided here."""
        return {*self._named, *self._starts}

    def decide(self, made: Notification) -> None:
        """Let the kernel make the call, or refuse it."""
        error = self._start() if made.number in self._starts else self._name(made)
        if error:
            self._listener.answer(made, error)
        else:
            self._listener.proceed(made)

    def _name(self, made: Notification) -> int:
        name, argument = self._named[made.number]
        pid = made.arguments[argument] & 0xFFFF_FFFF  # the kernel takes it as an int
        if pid <= 0x7FFF_FFFF and _is_below(pid, os.getpid()):
            return 0
        self._refused("process", name, "a process that the server did not start")
        return errno.EPERM

    def _start(self) -> int:
        if self._has_room():
            return 0
        self._refused("processes", str(self._most), "so many are running")
        return errno.EAGAIN

    def _has_room(self) -> bool:
        if self._most is None:
            return True
        if self._free == 0:  # processes end unnoticed: count again, but not for each one that starts
            self._free = max(0, self._most - _count())
            if 0 < self._free <= self._counted:  # what was just allowed may not be there yet
                time.sleep(_START_S)
                self._free = max(0, self._most - _count())
            self._counted = self._free
        if self._free == 0:
            return False
        self._free -= 1
        return True


def _count() -> int:
    """The threads of all processes below this one."""
    count = 0
    for pid in below([os.getpid()])[1:]:
        try:
            count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has just ended
            continue
    return count


def _is_below(pid: int, ancestor: int) -> bool:
    """True if a process or thread was started, directly or not, by the ancestor."""
    for _ in range(_MAX_DEPTH):
        pid = _parent(pid)
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
    return False


def _parent(pid: int) -> int:
    """0 if there is no such process any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name may hold spaces and brackets; state and parent follow the last bracket.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
