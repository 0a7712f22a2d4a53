"""Collect the reports of a gate to the gateway until they can be sent: of refused system calls, and of what a watched
process uses. So even a flood of system calls causes a limited number of messages."""

import os
from collections.abc import Callable
from typing import Any, Final, TypeAlias

MAX_KINDS: Final = 64
"""Maximum number of different refusals between two messages. All further ones are counted together, without details."""

_EVERY_S: Final = 1.0
_MAX_CHARS: Final = 300
_BURST: Final = 8


Refused: TypeAlias = Callable[[str, str, str], None]
"""A function that reports one refusal: its kind, what was refused, and why, as in `RefusalQueue.add`."""


class RefusalQueue:
    """Count refusals until they are sent: the first few at once, later ones once a second."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._next = 0.0
        self._burst = _BURST

    def add(self, kind: str, what: str, why: str, count: int = 1) -> None:
        """Count a refusal. `kind` becomes a label of the counter of refusals; `what` is written as it would be granted
        in a configuration."""
        # A path may have bytes that are no text, but the gateway reads text.
        key = (kind, what[:_MAX_CHARS].encode("utf-8", "backslashreplace").decode(), why)
        if key not in self._counts and len(self._counts) >= MAX_KINDS:
            key = ("other", "", "")
        self._counts[key] = self._counts.get(key, 0) + count

    def take(self, now: float, *, everything: bool = False) -> list[dict[str, Any]]:
        """Remove and return the refusals to send now, in order of arrival; empty if it is too early. With `everything`,
        it is never too early."""
        if not self._counts or (now < self._next and not self._burst and not everything):
            return []
        self._burst = _BURST - 1 if now >= self._next else max(0, self._burst - 1)
        self._next = now + _EVERY_S
        taken, self._counts = self._counts, {}
        return [{"kind": kind, "what": what, "why": why, "count": n} for (kind, what, why), n in taken.items()]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next refusals are to be sent; None if there are none."""
        return max(0.0, self._next - now) if self._counts else None


MAX_THINGS: Final = 20_000
_AT_ONCE: Final = 100
_MAX_THING_CHARS: Final = 4_096
_MAX_BYTES: Final = 32_768
_EVERY_THING_S: Final = 0.1


class Touched:
    """Collect the files, addresses and ports that a watched process uses, until they can be sent. Each is sent once, as
    `(kind, what)`, and at most `MAX_THINGS` are."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []
        self._next = 0.0

    def add(self, kind: str, what: str) -> None:
        """Add something that the process has used to the next report. `kind` is a letter of `Grant.mode` for a path, or
        `connect`, `socket` or `listen`."""
        thing = (kind, _text(what[:_MAX_THING_CHARS]))
        if thing not in self._known and len(self._known) < MAX_THINGS:
            self._known.add(thing)
            self._waiting.append(thing)

    def peek(self, now: float, *, everything: bool = False) -> list[tuple[str, str]]:
        """Return the entries to send now, as many as fit into one message; empty if it is too early. With `everything`,
        it is never too early. The entries remain until `sent` is called."""
        if not self._waiting or (now < self._next and len(self._waiting) < _AT_ONCE and not everything):
            return []
        self._next = now + _EVERY_THING_S
        size = 0
        found: list[tuple[str, str]] = []
        for thing in self._waiting[:_AT_ONCE]:
            size += 6 * len(thing[1]) + 32  # its largest size in JSON
            if found and size > _MAX_BYTES:
                break
            found.append(thing)
        return found

    def sent(self, count: int) -> None:
        """Remove the first `count` entries, which were sent."""
        del self._waiting[:count]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next report is to be sent; None if there is nothing to report."""
        return max(0.0, self._next - now) if self._waiting else None


def _text(what: str) -> str:
    """Return the path as text. If it has bytes that are no valid text, return the nearest folder above it that has
    none: the report is meant for a configuration, and a configuration is text."""
    while True:
        try:
            what.encode()
        except UnicodeEncodeError:
            what = os.path.dirname(what)
        else:
            return what
