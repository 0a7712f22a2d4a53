"""Keep the background tasks of one owner: hold a reference, log a failure, cancel them when the owner closes."""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

CANCEL_S: Final = 5.0
"""Seconds that `close` waits for a cancelled task. A task that takes longer is abandoned, with a log line."""


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Run all of `works` until the first one ends, then cancel the others and wait for their end.

    Raises:
        ExceptionGroup: some of `works` have failed. The group has their exceptions.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


class TasksClosed(Exception):
    """A background task for whose result several callers waited was cancelled, because the owner of the task has
    closed."""


class Tasks:
    """Manage the background tasks of one object. `owner` is a name of that object for log lines. A task that is started
    after `close` is cancelled at once."""

    # Small while nothing runs: there are as many as there are sessions.
    __slots__ = ("_awaited", "_is_closed", "_owner", "_running", "_shared")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[Any]] | None = None
        self._shared: dict[Hashable, asyncio.Task[Any]] | None = None
        self._awaited: set[asyncio.Task[Any]] | None = None
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background, and log an exception that it raises. Return the task."""
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", None))
        if self._running is None:
            self._running = set()
        self._running.add(task)
        task.add_done_callback(self._ended)
        if self._is_closed:
            task.cancel()
        return task

    def start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the running task of `key`; start one with `work` if there is none."""
        task = self.running(key)
        if task is None:
            task = self.spawn(work())
            if self._shared is None:
                self._shared = {}
            self._shared[key] = task
            task.add_done_callback(functools.partial(self._forget, key))
        return task

    async def share(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the running task of `key`, which concurrent callers share. Start one if there is none.

        A cancelled caller does not cancel the task. A failure reaches every caller that waits, and is not logged.

        Raises:
            TasksClosed: `close` has cancelled the task.
        """
        task = self.start(key, work)
        if self._awaited is None:
            self._awaited = set()
        self._awaited.add(task)
        await asyncio.wait((task,))
        if task.cancelled():
            raise TasksClosed(f"{self._owner}: closed")
        return task.result()

    def running(self, key: Hashable) -> asyncio.Task[Any] | None:
        """Return the running task of `key`; None if there is none."""
        task = None if self._shared is None else self._shared.get(key)
        return None if task is None or task.done() else task

    async def settled(self) -> None:
        """Wait until every task that runs now has ended. Do not raise their exceptions."""
        others = self._others()
        if others:
            await asyncio.wait(others)

    async def close(self, *, wait_s: float = 0.0) -> None:
        """Give the tasks `wait_s` seconds to end by themselves, then cancel the rest and wait for their end."""
        self._is_closed = True
        others = self._others()
        if others and wait_s > 0:
            _, others = await asyncio.wait(others, timeout=wait_s)
        for task in others:
            task.cancel()
        if others:
            _, others = await asyncio.wait(others, timeout=CANCEL_S)
        for task in others:
            logger.warning("%s: task %s ignores its cancellation", self._owner, task.get_name())

    def _others(self) -> set[asyncio.Task[Any]]:
        """Return the running tasks, except the caller's own."""
        return set() if self._running is None else self._running - {asyncio.current_task()}

    def _forget(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if self._shared is not None and self._shared.get(key) is task:
            del self._shared[key]
            self._shared = self._shared or None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()  # marks the exception as retrieved
        if error is not None and (self._awaited is None or task not in self._awaited):
            logger.error("%s: task %s failed", self._owner, task.get_name(), exc_info=error)
        for tasks in (self._running, self._awaited):
            if tasks is not None:
                tasks.discard(task)
        self._running, self._awaited = self._running or None, self._awaited or None
