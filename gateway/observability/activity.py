"""What happened and how often, for operators: calls that have ended and events, on their way to timelines and figures,
and from there to the store.

A call pays for one append here. What is made of it is made while no call waits for it: docs/adr/0035-activity.md.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from gateway.observability.figures import Figures
from gateway.observability.outcome import EndedCall
from gateway.observability.timelines import Timelines
from session_store import AuditEvent, Backend, Session, StoreUnavailable, TimelinePart

__all__ = ["WRITTEN_EVERY_S", "Activity"]

WRITTEN_EVERY_S: Final = 10.0
"""How long what happened waits before it is in the store. A gateway that is killed loses that much."""

_SEEN_EVERY_S: Final = 1.0
_AT_ONCE: Final = 64
"""As soon as this many calls have ended, they are handed on: in 0.05 ms."""


class Activity:
    """Collects for this replica. `live` tells how many sessions it has. `clock` gives Unix time."""

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
        """Hand on the calls that have ended so far."""
        calls, self._calls = self._calls, []
        if calls:
            self.timelines.take_calls(calls)
            self.figures.take_calls(calls)

    def end_second(self) -> None:
        """Hand on what a second has brought."""
        self.hand_on()
        if self.figures.ends_minute(self._clock()):
            self.timelines.count()
        self.figures.tick(self._clock(), self._live())

    async def write(self) -> None:
        """Write what waits. What cannot be written waits on, within its bounds."""
        self.end_second()
        with contextlib.suppress(StoreUnavailable):  # the sweep of sessions logs it
            await self.timelines.flush()
            await self.figures.flush()

    def unwritten(self, name: str) -> TimelinePart | None:
        """Return what the store does not have yet of the timeline of the session whose id begins like that."""
        self.hand_on()
        return self.timelines.part_of(name)

    async def write_seen(self) -> None:
        """Write what somebody looks at: the figures, and the timelines of sessions that have ended, which no list
        of live sessions shows. Once a second at most."""
        if self._clock() - self._seen_at < _SEEN_EVERY_S:
            return
        self._seen_at = self._clock()
        self.end_second()
        self.timelines.count()
        with contextlib.suppress(StoreUnavailable):  # who reads them next finds out
            await self.timelines.flush(ended_only=True)
            await self.figures.flush()

    async def upkeep(self) -> None:
        """Write again and again, until cancelled."""
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            await self.write()
