"""Frequent refusals: the first ones of each second are recorded individually, the rest are counted.

An unauthenticated client may send thousands of wrong keys per second. The audit trail counts all of them, most in sums.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from session_store import AuditEvent

__all__ = ["Repeated"]

FULL_ALIKE: Final = 10
"""Events of one kind and one client that are recorded individually in a second: enough to see what they are."""

FULL_IN_ALL: Final = 100
"""Events of all kinds and clients that are recorded individually in a second."""

SUMS: Final = 64
"""Sums that are kept for different clients. Further clients share one sum, so that many addresses cost no more."""

_REASON_CHARS: Final = 160

Key = tuple[str, str, str]


class Repeated:
    """Decides for each refusal whether it is recorded individually or counted in a sum."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = float("-inf")
        self._full: Counter[Key] = Counter()
        self._recorded = 0
        self._sums: dict[Key, AuditEvent] = {}

    def take(self, event: AuditEvent) -> AuditEvent | None:
        """The event if it is to be recorded individually; None if it was added to a sum."""
        now = self._clock()
        if not 0 <= now - self._began < 1.0:
            self._began, self._recorded = now, 0
            self._full.clear()
        key = (event.reason[:_REASON_CHARS], event.principal, event.client)
        if self._recorded < FULL_IN_ALL and self._full[key] < FULL_ALIKE:
            self._recorded += 1
            self._full[key] += 1
            return event
        self._count(key, event)
        return None

    def _count(self, key: Key, event: AuditEvent) -> None:
        if key not in self._sums and len(self._sums) >= SUMS:
            key = ("", "", "")
        summed = self._sums.get(key)
        if summed is None:
            reason, principal, client = key
            summed = replace(
                event, session="", correlation="", reason=reason, principal=principal, client=client, count=0
            )
        self._sums[key] = replace(summed, at=event.at, count=summed.count + event.count)

    def sums(self) -> Iterator[AuditEvent]:
        """The sums since the last call, each as one event."""
        sums, self._sums = self._sums, {}
        for event in sums.values():
            what = event.reason or "other refusals"
            yield replace(event, reason=f"{what} (\u00d7{event.count})")
