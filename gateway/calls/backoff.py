"""When something that fails is tried again: after a second, then after twice as long each time. Pure."""

from typing import Final

__all__ = ["MOST_S", "Backoff"]

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
"""A server that comes back after a long outage is found within this time."""


class Backoff:
    """The failures in a row of one server. Success makes a new one. Times are seconds of a monotonic clock."""

    __slots__ = ("count", "failed_at", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.failed_at = 0.0
        self.reason = ""

    def fail(self, reason: str, now: float) -> None:
        """Record one more failure. `reason` is for the client."""
        self.count += 1
        self.failed_at = now
        self.reason = reason

    @property
    def delay_s(self) -> float:
        """The time from the last failure to the next attempt; 0 if nothing has failed."""
        return min(MOST_S, FIRST_S * 2.0 ** min(self.count - 1, 16)) if self.count else 0.0

    def left_s(self, now: float) -> float:
        """Return the time until the next attempt."""
        return max(0.0, self.failed_at + self.delay_s - now) if self.count else 0.0
