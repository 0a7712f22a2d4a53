"""Which ends of a server's processes are worth a line, so that one that dies again and again fills no log. Pure.

Only of processes that have sent no message: each of the others has served somebody.
"""

from typing import Final

__all__ = ["EVERY_S", "MOST_KINDS", "Ends"]

EVERY_S: Final = 60.0
MOST_KINDS: Final = 8
"""Different ends that have a line each in this time. Output with a time or a number in it differs each time."""


class Ends:
    """The ends of one server's processes. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._told: set[tuple[str, str]] = set()
        self._silent = 0

    def add(self, how: str, words: str, now: float) -> int | None:
        """Count an end. None if it is worth no line: one like it has had one, or many others have, in the last minute.
        Otherwise how many had none since the last line."""
        if now - self._began >= EVERY_S:
            self._began = now
            self._told.clear()
        kind = (how, words)
        if kind in self._told or len(self._told) >= MOST_KINDS:
            self._silent += 1
            return None
        self._told.add(kind)
        silent, self._silent = self._silent, 0
        return silent
