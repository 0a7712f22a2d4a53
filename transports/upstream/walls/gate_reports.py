"""Collect the reports of a gate to the gateway until they can be sent: refusals, and what a watched process touches.

So a flood costs a bounded number of messages.
"""

import os
from collections.abc import Callable
from typing import Any, Final, TypeAlias

MAX_KINDS: Final = 64
"""The most different refusals between two messages. All others are counted as one more, without details."""

_EVERY_S: Final = 1.0
_MAX_CHARS: Final = 300
_BURST: Final = 8


Refused: TypeAlias = Callable[[str, str, str], None]
"""Report one refusal: kind, what and why, as in `RefusalQueue.add`."""


class RefusalQueue:
    """Count refusals. The first ones are ready to be sent at once, later ones once a second."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._next = 0.0
        self._burst = _BURST

    def add(self, kind: str, what: str, why: str, count: int = 1) -> None:
        """Count a refusal. `kind` becomes a label of the counter of refusals; `what` is written as it would be
        granted."""
        # A path may have bytes that are no text, but the gateway reads text.
        key = (kind, what[:_MAX_CHARS].encode("utf-8", "backslashreplace").decode(), why)
        if key not in self._counts and len(self._counts) >= MAX_KINDS:
            key = ("other", "", "")
        self._counts[key] = self._counts.get(key, 0) + count

    def take(self, now: float, *, everything: bool = False) -> list[dict[str, Any]]:
        """Return the refusals to send now, in the order in which they came."""
        if not self._counts or (now < self._next and not self._burst and not everything):
            return []
        self._burst = _BURST - 1 if now >= self._next else max(0, self._burst - 1)
        self._next = now + _EVERY_S
        taken, self._counts = self._counts, {}
        return [{"kind": kind, "what": what, "why": why, "count": n} for (kind, what, why), n in taken.items()]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next message; None if nothing is kept."""
        return max(0.0, self._next - now) if self._counts else None


MAX_THINGS: Final = 20_000
_AT_ONCE: Final = 100
_MAX_THING_CHARS: Final = 4_096
_MAX_BYTES: Final = 32_768
_EVERY_THING_S: Final = 0.1


class Touched:
    """Collect the things that a watched process touches, until they can be sent. Each is kept once, as `(kind, what)`,
    and at most `MAX_THINGS` are kept.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []
        self._next = 0.0

    def add(self, kind: str, what: str) -> None:
        """Note a thing for the next report. `kind`: a letter of `Grant.mode` for a path; connect, socket or listen."""
        thing = (kind, _text(what[:_MAX_THING_CHARS]))
        if thing not in self._known and len(self._known) < MAX_THINGS:
            self._known.add(thing)
            self._waiting.append(thing)

    def peek(self, now: float, *, everything: bool = False) -> list[tuple[str, str]]:
        """Return the things to send now. They stay until `sent` is called."""
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
        """Forget the first `count` things, which have been sent."""
        del self._waiting[:count]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until something is to be sent; None if nothing waits."""
        return max(0.0, self._next - now) if self._waiting else None


def _text(what: str) -> str:
    """Return the path, or its folder if it has bytes that are no text: only text can be granted in a configuration."""
    while True:
        try:
            what.encode()
        except UnicodeEncodeError:
            what = os.path.dirname(what)
        else:
            return what
