"""Counts what servers start, so that one with too many processes and threads is ended. For `fork_server.py`.

The kernel's own limit counts all processes of a user. A filter that announced each start to the gate would have starts
interrupted by signals before the gate hears of them, and shells take that for a failure. So the fork server looks ten
times a second how many processes the machine has started, and after many of them has each reaper count its own.
"""

import os
from typing import Final

from transports.upstream.process_tree import below

__all__ = ["LOOK_MS", "Starts", "count"]

LOOK_MS: Final = 100
_MANY: Final = 64
"""As many starts may pass before the reapers count again: a server may exceed its limit by these for a moment."""


class Starts:
    """The processes and threads that were started on this machine, or in this container."""

    def __init__(self) -> None:
        self._seen = _last_number()

    def are_many(self) -> bool:
        """True if there were many since it was last said that there were. Numbers rise, and begin again at the end."""
        last = _last_number()
        if 0 <= last - self._seen < _MANY:
            return False
        self._seen = last
        return True


def _last_number() -> int:
    """The number that the last process or thread got (proc(5), loadavg)."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except OSError:
        return 0


def count() -> int:
    """The threads of all processes below this one."""
    found = 0
    for pid in below([os.getpid()])[1:]:
        try:
            found += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has just ended
            continue
    return found
