"""Collect ended calls and audit events, and pass them to the timelines and usage figures that operators see.

Timelines and figures are written to the store every few seconds. When a call ends, it is only appended to a list here;
everything else is done later, while no call waits (docs/adr/0035-activity.md).
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from gateway.observability.request_outcomes import EndedCall
from gateway.observability.timelines import Timelines
from gateway.observability.usage_counts import Figures
from session_store import AuditEvent, Backend, Session, StoreUnavailable, TimelinePart

WRITTEN_EVERY_S: Final = 10.0
"""Seconds between two writes to the store. A gateway that is killed loses the activity since the last write."""

_SEEN_EVERY_S: Final = 1.0
_AT_ONCE: Final = 64
"""Number of ended calls that are passed on at once, without waiting for the end of the second. It takes 0.05 ms."""


class Activity:
    """Collect the ended calls and the audit events of this replica, for its timelines and usage figures. `live` returns
    the number of its live sessions, `clock` the Unix time."""

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
        self._calls.append(call)
        if len(self._calls) >= _AT_ONCE:
            self.hand_on()

    def add_event(self, event: AuditEvent, session: Session | None) -> None:
        """Add an event of the audit trail. `session`: the record of its session; None if the caller has none."""
        self.timelines.add_event(event, session)
        if event.event == "created" and session is not None:
            self.figures.count(session, opened=1)

    def hand_on(self) -> None:
        """Pass the collected calls to the timelines and the usage figures (counts and durations)."""
        calls, self._calls = self._calls, []
        if calls:
            self.timelines.add_calls(calls)
            self.figures.add_calls(calls)

    def end_second(self) -> None:
        """Pass on the calls of the last second. If a minute is over, close the record of its figures. Called once a
        second."""
        self.hand_on()
        if self.figures.ends_minute(self._clock()):
            self.timelines.count()
        self.figures.tick(self._clock(), self._live())

    async def write(self) -> None:
        """Write timelines and figures to the store. If the store does not answer, keep them, up to a limit."""
        self.end_second()
        with contextlib.suppress(StoreUnavailable):  # the sweep of sessions logs it
            await self.timelines.flush()
            await self.figures.flush()

    def unwritten(self, name: str) -> TimelinePart | None:
        """Return the part of a session's timeline that is not in the store yet; None if there is none. `name`: the
        shortened session id, as in logs."""
        self.hand_on()
        return self.timelines.part_of(name)

    async def write_seen(self) -> None:
        """Write to the store, at once, what an operator is about to read there: the usage figures, and the timelines of
        ended sessions. Do nothing if the last such write was less than a second ago."""
        if self._clock() - self._seen_at < _SEEN_EVERY_S:
            return
        self._seen_at = self._clock()
        self.end_second()
        self.timelines.count()
        with contextlib.suppress(StoreUnavailable):  # who reads them next finds out
            await self.timelines.flush(ended_only=True)
            await self.figures.flush()

    async def upkeep(self) -> None:
        """Write timelines and figures every `WRITTEN_EVERY_S` seconds until cancelled."""
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            await self.write()
