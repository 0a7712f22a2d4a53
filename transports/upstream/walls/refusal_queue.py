"""Gathers what was refused to a process, so that a flood of refusals costs a bounded number of messages."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

__all__ = ["RefusalQueue", "Refused"]

MAX_KINDS: Final = 64
"""Different refusals that are told apart between two messages. All others are one more, without what was refused."""

_EVERY_S: Final = 1.0
_MAX_CHARS: Final = 300
_BURST: Final = 8


Refused: TypeAlias = Callable[[str, str, str], None]
"""Tells of one refusal: kind, what and why, as `RefusalQueue.add`."""


class RefusalQueue:
    """Counts refusals. The first ones are ready to be sent at once, more of them once a second."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._next = 0.0
        self._burst = _BURST

    def add(self, kind: str, what: str, why: str, count: int = 1) -> None:
        """Count a refusal. `kind` is a value of the label of the counter that they end in; `what` is written as it
        would be granted."""
        # A path may have bytes that are no text: what the gateway reads is.
        key = (kind, what[:_MAX_CHARS].encode("utf-8", "backslashreplace").decode(), why)
        if key not in self._counts and len(self._counts) >= MAX_KINDS:
            key = ("other", "", "")
        self._counts[key] = self._counts.get(key, 0) + count

    def take(self, now: float, *, everything: bool = False) -> list[dict[str, Any]]:
        """Return the refusals that are to be sent now, in the order in which they came."""
        if not self._counts or (now < self._next and not self._burst and not everything):
            return []
        self._burst = _BURST - 1 if now >= self._next else max(0, self._burst - 1)
        self._next = now + _EVERY_S
        taken, self._counts = self._counts, {}
        return [{"kind": kind, "what": what, "why": why, "count": n} for (kind, what, why), n in taken.items()]

    def due_in(self, now: float) -> float | None:
        """Seconds until the next message. None if nothing is kept."""
        return max(0.0, self._next - now) if self._counts else None
