"""Define the audit trail: its events, and the store of them.

The trail has parts (`Part`), each with its own limit. So events that strangers can cause without limit (refusals,
anonymous sessions) displace only events of the same part.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Final, Literal, Protocol

import msgspec

SessionEnd = Literal["expired", "evicted", "ended"]
StepName = Literal["created", "resumed", SessionEnd, "refused", "operated", "warned"]
"""The steps of a session's life, refusals, actions of operators, and warnings about clients."""
EventName = Literal[StepName, "called", "task", "blocked", "changed"]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event of the audit trail: something that happened to a session or in it.

    - `refused`: a request was refused. `reason` is what its client gets as `data.reason`, and `outcome` is `refused`.
      If an operator or an app is refused, or only a token, `reason` says it in words.
    - `task`: a call became a task, or a task got the status `outcome`; `reason` begins with the start of the task's id.
    - `blocked`: a sandbox has refused a server the access in `reason`, or the lock hides what it lists; `tool` is the
      server.
    - `changed`: a tool has changed since sessions were shown it.
    - `warned`: a client opens sessions and returns to none of them.

    No event is in a reference cycle, so the garbage collector may skip the thousands in memory (`gc=False`).
    """

    at: float
    """Seconds since the epoch."""
    event: EventName
    session: str = ""
    """The session's id as logs may show it (`session_store.session.redact`)."""
    principal: str = ""
    endpoint: str = ""
    era: str = ""
    reason: str = ""
    correlation: str = ""
    tool: str = ""
    """The tool that was called or has changed, as `server/name`."""
    outcome: str = ""
    """Of a call: ok, tool error, or an error code."""
    took_s: float = 0.0
    """The duration of a call."""
    client: str = ""
    """The address of the client of a call or of a refused request."""
    count: int = 1
    """The number of equal events that this one stands for."""
    context: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The fields of the session's context."""
    workspace: str = ""
    trust: str = ""
    lasted_s: float = 0.0
    """The age of a session that has ended."""
    calls: int | None = None
    """Of a session that has ended: the number of calls that its last replica answered; None if that
    replica is not known."""
    arguments: str = ""
    """Those arguments of a call that the operator has chosen for events, as JSON."""
    why: str = ""
    """Why a request was refused, for operators."""


class AuditTrail(Protocol):
    """Store the audit trail in parts (`PARTS`). Each part has its own limit, and drops its oldest events first."""

    async def record(self, events: Sequence[AuditEvent]) -> None:
        """Append these events to the parts to which they belong."""

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        """Return the newest `limit` events of all parts, newest first."""


Part = Literal["operators", "sessions", "refusals", "calls", "strangers"]
PARTS: Final[tuple[Part, ...]] = ("operators", "sessions", "refusals", "calls", "strangers")
"""The parts, in this order: actions of operators; events of named principals' sessions; their refusals; their calls and
tasks; events of anonymous or unknown clients."""
MAX_AUDIT_EVENTS: Final = 10_000
"""The most events that each part of the audit trail keeps."""


def part_of(event: AuditEvent) -> Part:
    """Return the part of the audit trail to which an event belongs."""
    if event.event == "operated":
        return "operators"
    if event.event in ("blocked", "changed"):
        return "calls"  # about a server, whoever owns the session
    if event.principal in ("", "anonymous"):
        return "strangers"
    if event.event == "refused":
        return "refusals"
    return "calls" if event.event in ("called", "task") else "sessions"


def by_part(events: Iterable[AuditEvent]) -> Mapping[Part, list[AuditEvent]]:
    """Return the events by the part of the trail to which they belong, in the order in which they are given. Parts
    without events are left out."""
    parts: defaultdict[Part, list[AuditEvent]] = defaultdict(list)
    for event in events:
        parts[part_of(event)].append(event)
    return parts


def newest(parts: Iterable[Sequence[AuditEvent]], limit: int) -> list[AuditEvent]:
    """Merge the events of several parts, each sorted with its newest first. Return the `limit` newest events, newest
    first."""
    placed = ((event, -place) for part in parts for place, event in enumerate(part))
    return [event for event, _ in nlargest(limit, placed, key=lambda pair: (pair[0].at, pair[1]))]
