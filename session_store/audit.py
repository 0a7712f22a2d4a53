"""Which part of the audit trail an event is kept in. Each is capped by itself: nobody flushes what others did.

Pure. What a stranger can cause without limit (refusals, anonymous sessions) displaces nothing but its like.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Final, Literal

from session_store.ports.audit import AuditEvent

__all__ = ["MAX_AUDIT_EVENTS", "PARTS", "Part", "by_part", "newest", "part_of"]

Part = Literal["operators", "sessions", "refusals", "calls", "strangers"]

PARTS: Final[tuple[Part, ...]] = ("operators", "sessions", "refusals", "calls", "strangers")
"""What operators did · what happened to sessions of named principals · what those were refused · their calls and
tasks · whatever nobody in particular caused."""

MAX_AUDIT_EVENTS: Final = 10_000
"""Of each part."""


def part_of(event: AuditEvent) -> Part:
    """Where an event belongs."""
    if event.event == "operated":
        return "operators"
    if event.event == "blocked":
        return "calls"  # of a server, whoever its session belongs to
    if event.principal in ("", "anonymous"):
        return "strangers"
    if event.event == "refused":
        return "refusals"
    return "calls" if event.event in ("called", "task") else "sessions"


def by_part(events: Iterable[AuditEvent]) -> Mapping[Part, list[AuditEvent]]:
    """The events of each part that has any, in their order."""
    parts: defaultdict[Part, list[AuditEvent]] = defaultdict(list)
    for event in events:
        parts[part_of(event)].append(event)
    return parts


def newest(parts: Iterable[Sequence[AuditEvent]], limit: int) -> list[AuditEvent]:
    """The newest events of several parts, each newest first, as one list."""
    placed = ((event, -place) for part in parts for place, event in enumerate(part))
    return [event for event, _ in nlargest(limit, placed, key=lambda pair: (pair[0].at, pair[1]))]
