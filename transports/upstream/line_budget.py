"""Which lines about one server the log has, so that a server fills no log."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["EVERY_S", "MOST_KINDS", "LineBudget", "log_line"]

EVERY_S: Final = 60.0
MOST_KINDS: Final = 8
"""Different lines of one topic in this time. Output with a time or a number in it differs each time."""


class LineBudget:
    """The lines that one server's processes cause. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._told: set[tuple[str, ...]] = set()
        self._lines = Counter[str]()
        self._silent = Counter[str]()

    def add(self, topic: str, *kind: str, now: float) -> int | None:
        """Count a line. None if it is not worth one: one like it was written, or many others of its topic were, in the
        last minute. Otherwise how many of its topic were not written since the last one was."""
        if now - self._began >= EVERY_S:
            self._began = now
            self._told.clear()
            self._lines.clear()
        if (topic, *kind) in self._told or self._lines[topic] >= MOST_KINDS:
            self._silent[topic] += 1
            return None
        self._told.add((topic, *kind))
        self._lines[topic] += 1
        return self._silent.pop(topic, 0)


def log_line(
    logger: logging.Logger, before: int | None, what: str, more: str, fields: Callable[[], Mapping[str, Any]]
) -> None:
    """Log a line, or at level debug if it is not worth one. `before` is what the budget says of the line."""
    level = logging.DEBUG if before is None else logging.WARNING
    if logger.isEnabledFor(level):
        others = f" ({before} more before it, which have no line)" if before else ""
        logger.log(level, "%s%s%s", what, others, more, extra=fields())
