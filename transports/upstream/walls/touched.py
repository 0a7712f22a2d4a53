"""Gathers what a watched process touches until it can be sent: each thing once, and a bounded number of things."""

import os
from typing import Final

__all__ = ["Touched"]

MAX_THINGS: Final = 20_000
_AT_ONCE: Final = 100
_MAX_CHARS: Final = 4_096
_MAX_BYTES: Final = 32_768
_EVERY_S: Final = 0.1


class Touched:
    """Things in the order in which they were first touched: `(kind, what)`. What is beyond the bound is left out."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []
        self._next = 0.0

    def add(self, kind: str, what: str) -> None:
        """`kind` is a letter of `Grant.mode` for a path, or connect, socket or listen."""
        thing = (kind, _text(what[:_MAX_CHARS]))
        if thing not in self._known and len(self._known) < MAX_THINGS:
            self._known.add(thing)
            self._waiting.append(thing)

    def peek(self, now: float, *, everything: bool = False) -> list[tuple[str, str]]:
        """What is to be sent now. It stays until it is `sent`."""
        if not self._waiting or (now < self._next and len(self._waiting) < _AT_ONCE and not everything):
            return []
        self._next = now + _EVERY_S
        size = 0
        found: list[tuple[str, str]] = []
        for thing in self._waiting[:_AT_ONCE]:
            size += 6 * len(thing[1]) + 32  # as JSON has it at most
            if found and size > _MAX_BYTES:
                break
            found.append(thing)
        return found

    def sent(self, count: int) -> None:
        """So many of the first ones have been sent."""
        del self._waiting[:count]

    def due_in(self, now: float) -> float | None:
        """Seconds until something is to be sent. None if nothing waits."""
        return max(0.0, self._next - now) if self._waiting else None


def _text(what: str) -> str:
    """A path with bytes that are no text cannot be granted in a configuration. The folder of such a file can."""
    while not _is_text(what):
        what = os.path.dirname(what)
    return what


def _is_text(what: str) -> bool:
    try:
        what.encode()
    except UnicodeEncodeError:
        return False
    return True
