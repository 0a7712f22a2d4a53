"""Collect ended calls and audit events, and pass them on to the timelines and figures that operators see.

Both are written to the store every few seconds. A call only appends itself to a list here; everything else is done
while no call waits for it (docs/adr/0035-activity.md).
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from gateway.observability.outcome import EndedCall
from gateway.observability.timelines import Timelines
from gateway.observability.usage_counts import Figures
from session_store import AuditEvent, Backend, Session, StoreUnavailable, TimelinePart

WRITTEN_EVERY_S: Final = 10.0
"""Seconds between two writes to the store. A gateway that is killed loses what came in since the last one."""

_SEEN_EVERY_S: Final = 1.0
_AT_ONCE: Final = 64
"""The number of ended calls that are handed on without waiting for the end of the second: it takes 0.05 ms."""


class Activity:
    """Collects the activity of this replica. `live` returns how many sessions it has, `clock` the Unix time."""

    def __init__(self, backend: Backend, replica: str, clock: Callable[[], float], live: Callable[[], int]) -> None:
        self.figures = Figures(backend.history, replica)
        self.timelines = Timelines(
            backend.timelines,
            replica,
            lambda session, calls, failed: self.figures.count(session, calls=calls, failed=failed),
        )
        self._clock = clock
        self._live = live
        self._calls: list[EndedCall] = []
        self._seen_at = float("-inf")

    def add_call(self, call: EndedCall) -> None:
        """Take a call that has ended."""
        self._calls.append(call)
        if len(self._calls) >= _AT_ONCE:
            self.hand_on()

    def add_event(self, event: AuditEvent, session: Session | None) -> None:
        """Take an event of the audit trail. `session` is the record of its session, if that is at hand."""
        self.timelines.take_event(event, session)
        if event.event == "created" and session is not None:
            self.figures.count(session, opened=1)

    def hand_on(self) -> None:
        """Hand the ended calls to the timelines and the figures."""
        calls, self._calls = self._calls, []
        if calls:
            self.timelines.take_calls(calls)
            self.figures.take_calls(calls)

    def end_second(self) -> None:
        """Hand on the calls of the last second, and close the minute of the figures if it is over."""
        self.hand_on()
        if self.figures.ends_minute(self._clock()):
            self.timelines.count()
        self.figures.tick(self._clock(), self._live())

    async def write(self) -> None:
        """Write timelines and figures to the store. If the store does not answer, keep them, up to a bound."""
        self.end_second()
        with contextlib.suppress(StoreUnavailable):  # the sweep of sessions logs it
            await self.timelines.flush()
            await self.figures.flush()

    def unwritten(self, name: str) -> TimelinePart | None:
        """Return the part of a session's timeline that is not in the store yet. `name`: the session's id as in logs."""
        self.hand_on()
        return self.timelines.part_of(name)

    async def write_seen(self) -> None:
        """Write what an operator is looking at: the figures, and the timelines of ended sessions. Do nothing within a
        second of the last such write."""
        if self._clock() - self._seen_at < _SEEN_EVERY_S:
            return
        self._seen_at = self._clock()
        self.end_second()
        self.timelines.count()
        with contextlib.suppress(StoreUnavailable):  # who reads them next finds out
            await self.timelines.flush(ended_only=True)
            await self.figures.flush()

    async def upkeep(self) -> None:
        """Write every `WRITTEN_EVERY_S` seconds until cancelled."""
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            await self.write()
