"""Waits for conditions and for the end of processes, each with a deadline."""

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

GIVE_UP_S = 60.0
"""How long a test waits for what has to come. It fails a test where nothing comes, not one on a busy machine."""


def eventually(condition: Callable[[], bool], within_s: float = GIVE_UP_S) -> bool:
    """Poll a condition until it is true. Returns False if it is not within `within_s` seconds.

    What takes long to ask, such as a list of all processes, is asked less often: it takes time from what it waits for.
    """
    deadline = time.monotonic() + within_s
    begun = time.monotonic()
    while not condition():
        asked = time.monotonic()
        if asked > deadline:
            return False
        time.sleep(min(max(0.02, 3 * (asked - begun)), 0.1))
        begun = time.monotonic()
    return True


def descendants(pid: int) -> list[psutil.Process]:
    """The child processes of a process and their descendants, zombies included; empty if the process is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def gone(processes: list[psutil.Process], within_s: float = GIVE_UP_S) -> bool:
    """Wait until all these processes have ended (a zombie has). Returns False if one is alive after `within_s`."""

    def over(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return eventually(lambda: all(over(p) for p in processes), within_s)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns without waiting for anything."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("it waits")
