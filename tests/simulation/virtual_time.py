"""An event loop with simulated time for several hosts, and clocks and random numbers that follow it.

`install` replaces the functions of the standard library that read a clock or the system's entropy. It has to run before
the product is imported: the product takes these functions by name. So nothing of the product is changed for it.
"""

import asyncio
import heapq
import itertools
import os
import random
import time
from asyncio.events import Handle, TimerHandle
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

EPOCH_S: Final = 1_800_000_000.0
"""What the wall clock shows when the simulated time is 0."""

_STEP_S: Final = 20e-6
"""The most that one pass of the loop takes, so that who waits in a loop of its own does not stop the time."""

PROCESSOR_S: Callable[[], float] = time.process_time


class Stuck(Exception):
    """Nothing is left to do, and somebody waits."""


class _Handle(Handle):
    __slots__ = ("host",)
    host: str


class _TimerHandle(TimerHandle):
    __slots__ = ("host",)
    host: str
    _scheduled: bool


_numbers = itertools.count(1)


class _Future(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(_numbers)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, coroutine: Any, *, loop: asyncio.AbstractEventLoop, **given: Any) -> None:
        self._number = next(_numbers)
        super().__init__(coroutine, loop=loop, **given)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Run callbacks of several hosts. What a callback schedules belongs to its host. When no callback is left, the time
    goes on to the next timer.

    A paused host runs nothing, and then all that came meanwhile. A dead host runs nothing any more: no `finally` and no
    `except` either, as if its process had been killed.
    """

    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.host = ""
        self.steps = 0
        self.random = random.Random(0)
        self.offsets: dict[str, float] = {}
        """What the wall clock of a host is ahead of the true time, in seconds."""
        self._paused: dict[str, list[_Handle | _TimerHandle]] = {}
        self._dead: dict[str, list[Any]] = {}  # kept, so that no destructor runs
        self._clock_resolution = 1e-9
        self.set_task_factory(lambda loop, coroutine, **given: _Task(coroutine, loop=loop, **given))

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    # -- scheduling

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = _Handle(callback, args, self, context)
        handle.host = self.host
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        timer = _TimerHandle(when, callback, args, self, context)
        timer.host = self.host
        timer._scheduled = True
        heapq.heappush(self._scheduled, timer)
        return timer

    def at_host(self, host: str, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Run a callback of that host after a delay, in a context of its own."""
        before, self.host = self.host, host
        self.call_at(self.now + delay_s, callback, *args, context=Context())
        self.host = before

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # of any result
        """Run it at once: a thread would run at any time."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Do nothing: cancelled timers are dropped when they are due."""

    def _process_events(self, event_list: Any) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        self.now += _STEP_S * self.random.random()
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        if not ready:
            if not scheduled:
                raise Stuck
            self.now = max(self.now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self.now:
            ready.append(heapq.heappop(scheduled))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            host = handle.host
            if host in self._dead:
                self._dead[host].append(handle)
            elif host in self._paused:
                self._paused[host].append(handle)
            else:
                self.host = host
                self.steps += 1
                handle._run()
        self.host = ""

    # -- hosts

    def is_down(self, host: str) -> bool:
        """True if that host runs nothing now."""
        return host in self._dead or host in self._paused

    def is_dead(self, host: str) -> bool:
        """True if that host was killed."""
        return host in self._dead

    def pause(self, host: str) -> None:
        """Stop a host, as SIGSTOP does."""
        self._paused.setdefault(host, [])

    def go_on(self, host: str) -> None:
        """Let a paused host run what has come meanwhile."""
        for handle in self._paused.pop(host, []):
            self._ready.append(handle)

    def kill(self, host: str) -> None:
        """End a host, as SIGKILL does."""
        self._dead[host] = [*self._paused.pop(host, [])]


def install(loop: VirtualLoop) -> None:
    """Have the clocks and the entropy of this process follow the loop."""

    def wall() -> float:
        return EPOCH_S + loop.now + loop.offsets.get(loop.host, 0.0)

    def entropy(size: int) -> bytes:
        return loop.random.randbytes(size)

    replaced: dict[str, Callable[[], float]] = {
        "time": wall,
        "monotonic": loop.time,
        "perf_counter": loop.time,
        "process_time": loop.time,
        "thread_time": loop.time,
    }
    for name, clock in replaced.items():
        setattr(time, name, clock)
        setattr(time, f"{name}_ns", lambda clock=clock: int(clock() * 1e9))
    os.urandom = entropy
    random._urandom = entropy  # type: ignore[attr-defined]  # what `secrets` reads
    asyncio.set_event_loop(loop)
