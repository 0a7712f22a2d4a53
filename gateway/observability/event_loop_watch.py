"""Measure how late the event loop is and how long the garbage collector pauses it, and log the code that blocks it.

A timer of the loop runs every `BEAT_S` seconds (a beat), records the time, and sets the process's alarm (SIGALRM) to a
time at which the next beat is long overdue. The signal interrupts the code that blocks the loop, and its handler reads
the stack: names of functions and line numbers, never values. No thread is used: a thread that wakes up would take the
interpreter from the loop, for milliseconds on a busy machine.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import threading
from collections.abc import Iterator
from time import monotonic, thread_time
from types import FrameType
from typing import Any, Final

from gateway.observability.metrics import Metrics

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.05
"""Seconds between two beats. A beat takes a few microseconds."""

STALL_S: Final = 0.25
"""Seconds. A delay of the loop of at least this length is logged as a stall. Under load, milliseconds are normal."""

HANGS_S: Final = 5.0
"""Seconds. A stall of at least this length is logged before it ends."""

LINE_EVERY_S: Final = 10.0
"""Minimum seconds between two log lines about stalls. The metric counts all stalls."""

_FRAMES: Final = 8
_LOOPS: Final = (__name__, "asyncio.", "uvloop", "selectors", "uvicorn.server")
"""Prefixes of the modules of event loops, and this module. Functions in them are not reported as blocking."""


class LoopWatch:
    """Watch the event loop on which it is started, and log stalls of more than `stall_s` seconds.

    The log line names the blocking function only if the loop runs in the main thread and nothing else uses SIGALRM.
    """

    def __init__(self, metrics: Metrics, stall_s: float = STALL_S) -> None:
        self._metrics = metrics
        self._stall_s = stall_s
        self._beat_at = 0.0
        self._cpu_s = 0.0
        self._collector_s = 0.0
        self._collecting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_alarm = False
        self._place = ""
        self._next_line = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch the running event loop inside the block."""
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        self._has_alarm = is_main and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        if self._has_alarm:
            signal.signal(signal.SIGALRM, self._alarmed)
        gc.callbacks.append(self._collected)
        self._next_beat(loop, monotonic(), thread_time())
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            gc.callbacks.remove(self._collected)
            if self._has_alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)

    # -- beats

    def _next_beat(self, loop: asyncio.AbstractEventLoop, now: float, cpu_s: float) -> None:
        self._beat_at, self._cpu_s, self._collector_s, self._place = now, cpu_s, 0.0, ""
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, BEAT_S + self._stall_s)
        self._timer = loop.call_later(BEAT_S, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu_s = monotonic(), thread_time()
        late_s = max(0.0, now - self._beat_at - BEAT_S)
        self._metrics.stalls.add(late_s)
        if late_s >= self._stall_s and self._may_log(now):
            collector = "the garbage collector" if self._collector_s > late_s / 2 else ""
            logger.warning(
                "the event loop was blocked for %.3f s (%.3f s of CPU) at %s",
                *(late_s, cpu_s - self._cpu_s, collector or self._place or "a place that is not known"),
            )
        self._next_beat(loop, now, cpu_s)

    def _may_log(self, now: float) -> bool:
        if now < self._next_line:
            return False
        self._next_line = now + LINE_EVERY_S
        return True

    def _collected(self, phase: str, facts: dict[str, Any]) -> None:
        """Measure a run of the garbage collector (called by `gc.callbacks`). All threads wait while it runs."""
        if phase == "start":
            self._collecting_since = monotonic()
            return
        took_s = monotonic() - self._collecting_since
        self._collector_s += took_s
        self._metrics.collections[facts["generation"]].add(took_s)

    # -- alarms, which interrupt what blocks the loop

    def _alarmed(self, _: int, frame: FrameType | None) -> None:
        late_s = monotonic() - self._beat_at - BEAT_S
        self._place = self._place or _place_of(frame)
        if late_s < HANGS_S:
            signal.setitimer(signal.ITIMER_REAL, HANGS_S - late_s + BEAT_S)
        elif self._may_log(monotonic()):
            # In a thread: the log itself may be what blocks, and a signal handler may not enter it again.
            text = f"the event loop has been blocked for {late_s:.1f} s, and still is, at {self._place}"
            threading.Thread(target=logger.warning, args=("%s", text), daemon=True).start()


def _place_of(frame: FrameType | None) -> str:
    """Return a text for the log that names the innermost functions of a stack with their line numbers, up to those of
    the event loop. If there are none, the text says so."""
    places: list[str] = []
    while frame is not None and len(places) < _FRAMES:
        module = str(frame.f_globals.get("__name__", "?"))
        if module.startswith(_LOOPS):
            break
        places.append(f"{module}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return " < ".join(places) or "no function: the process did not run (it was stopped, or the machine was busy)"
