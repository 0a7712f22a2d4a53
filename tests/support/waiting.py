"""Which processes live: bounded looks at the process table, never a sleep for an outcome."""

import time
from collections.abc import Callable

import psutil

__all__ = ["descendants", "eventually", "gone"]


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def descendants(pid: int) -> list[psutil.Process]:
    """Everything a process has started, directly or not, and not yet buried."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def gone(processes: list[psutil.Process], within_s: float = 2.0) -> bool:
    """Whether these processes are all over in time; a zombie is."""

    def over(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return eventually(lambda: all(over(p) for p in processes), within_s)
