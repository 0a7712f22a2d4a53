"""Counts what servers start, so that one with too many processes and threads is ended. For `fork_server.py`.

The kernel's own limit counts all processes of a user. A filter that announced each start to the gate would have starts
interrupted by signals before the gate hears of them, and shells take that for a failure. So the fork server looks ten
times a second how many processes the machine has started, and after many of them has the reapers count below which
something was started.
"""

import os
from collections.abc import Collection, Iterable
from typing import Final

from transports.upstream.process_tree import below, parent

__all__ = ["LOOK_MS", "Starts", "count"]

LOOK_MS: Final = 100
_MANY: Final = 64
"""As many starts may pass before the reapers count again: a server may exceed its limit by these for a moment."""
_TRIES: Final = 5
_MAX_DEPTH: Final = 10_000  # a chain of parents longer than that is a circle of reused numbers
_SEES_ALL: Final = os.path.exists("/proc/1/stat")
"""False where /proc shows no processes of others (`hidepid`). Then it may not show those of servers either."""


class Starts:
    """The processes and threads that were started on this machine, or in this container."""

    def __init__(self) -> None:
        self._seen = _last_number()

    def below(self, reapers: Collection[int]) -> Iterable[int]:
        """Return, after many starts, those of the reapers below which something was started. Else none.

        The work grows with the starts, not with the reapers: a machine on which many processes start and end would
        otherwise have thousands of reapers count at once, several times a second, and everything else would wait.
        """
        last = _last_number()
        number = last - self._seen  # numbers rise, and begin again at the end
        if 0 <= number < _MANY:
            return ()
        first, self._seen = self._seen + 1, last
        if not 0 < number < _MANY * len(reapers) or not _SEES_ALL:
            return reapers  # counting is less work, or nobody knows what was started
        return _above(range(first, last + 1), reapers)


def _last_number() -> int:
    """Return the number that the last process or thread got (proc(5), loadavg)."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except OSError:
        return 0


def _above(pids: Iterable[int], reapers: Collection[int]) -> Iterable[int]:
    """Return the reapers below which these processes and threads are; all, if that could not be found out."""
    owners: dict[int, int] = {}
    for pid in pids:
        for _ in range(_TRIES):
            if _note_owner(pid, reapers, owners):
                break
        else:
            return reapers
    return {owner for owner in owners.values() if owner}


def _note_owner(pid: int, reapers: Collection[int], owners: dict[int, int]) -> bool:
    """Note to which reaper a process and all above it belong, 0 for none. False if one of those above has just ended:
    what was below it has another parent now."""
    walked: list[int] = []
    while pid not in owners and pid not in reapers:
        above = parent(pid)
        if (above is None and walked) or len(walked) > _MAX_DEPTH:
            return False
        walked.append(pid)
        pid = above or 0
        if not above:
            break
    owner = owners.get(pid, pid if pid in reapers else 0)
    owners.update(dict.fromkeys(walked, owner))
    return True


def count() -> int:
    """Return the threads of all processes below this one."""
    found = 0
    for pid in below([os.getpid()])[1:]:
        try:
            found += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:  # it has just ended
            continue
    return found
