"""Define what processes that share a store count and record together: rates, quotas, expiring flags, sealed values, the
audit trail, and the history of metrics.

The audit trail has parts (`Part`), each with its own limit. So events that strangers can cause without limit (refusals,
anonymous sessions) displace only events of the same part.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

SessionEnd = Literal["expired", "evicted", "ended"]
StepName = Literal["created", "resumed", SessionEnd, "refused", "operated", "warned"]
"""The steps of a session's life, refusals, actions of operators, and warnings about clients."""
EventName = Literal[StepName, "called", "task", "blocked", "changed"]


class Rates(Protocol):
    """Limit the rates of events, for all processes of a store together."""

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        """Count `times` events under `key`. Return the seconds until the last of them may happen; 0 if all may now. If
        the wait would exceed `within_s`, count nothing.

        The rate is `per_s` events a second in the long run, and up to `burst` at once. Events that were counted in
        advance keep their turn: events of later calls come after them.
        """


class Quotas(Protocol):
    """Limit how many names (of things in use) are held under a key, across all processes of a store."""

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        """Hold `name` under `key` and return an empty list. If `most` other names are held, return these instead.

        Each successful call extends the time for all names of the key to at least `for_s` seconds from now, even if
        `name` is held already. When this time has passed without another call, all names of the key are released.
        """

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        """Release these names of the key. Names that are not held are ignored."""


class ExpiringFlags(Protocol):
    """Set named flags for a limited time, for all processes of a store. All methods may raise `StoreUnavailable`."""

    async def set(self, name: str, for_s: float) -> None:
        """Set the flag for `for_s` seconds from now."""

    async def has(self, name: str) -> bool:
        """Return True while the flag is set."""

    async def drop(self, name: str) -> None:
        """Remove the flag, if it is set."""


class SealedValues(Protocol):
    """Keep values by name for a limited time, for all processes of a store. Callers encrypt the values: whoever reads
    the store must learn nothing. All methods may raise `StoreUnavailable`."""

    async def get(self, name: str) -> bytes | None:
        """Return the value; None if there is none."""

    async def replace(self, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0) -> bool:
        """If the value is `before` (None: there is none), set it to `after` for `for_s` seconds (None: remove it) and
        return True. Otherwise return False. Of several concurrent calls, only the first succeeds. No value is empty."""

    async def names(self) -> list[str]:
        """Return the names of all values, and perhaps some names whose value has expired or was removed."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event of the audit trail: something that happened to a session or in it.

    `session` is the id as logs may show it; `at` is in seconds since the epoch. A call has its `tool` (server/name),
    its duration `took_s` and its `outcome`: ok, tool error, or an error code. `client` is the address of the client of
    a call or a refused request. `count` is the number of equal events that this one stands for. The end of a session
    has the session's age `lasted_s` and the number of `calls` that its last replica answered, None if that replica is
    not known. `context` has the fields of the session's context, and `arguments` those arguments of a call that the
    operator has chosen for events, as JSON.

    - `refused`: a request was refused. `reason` is what its client gets as `data.reason`, and `why` is for operators.
      The `outcome` is `refused`. If an operator or an app is refused, or only a token, `reason` says it in words.
    - `task`: a call became a task, or a task got the status `outcome`; `reason` begins with the start of the task's id.
    - `blocked`: a sandbox has refused a server the access in `reason`, or the lock hides what it lists; `tool` is the
      server.
    - `changed`: a tool has changed since sessions were shown it; `tool` has the server, too.
    - `warned`: a client opens sessions and returns to none of them.

    No event is in a reference cycle, so the garbage collector may skip the thousands in memory (`gc=False`).
    """

    at: float
    event: EventName
    session: str = ""
    principal: str = ""
    endpoint: str = ""
    era: str = ""
    reason: str = ""
    correlation: str = ""
    tool: str = ""
    outcome: str = ""
    took_s: float = 0.0
    client: str = ""
    count: int = 1
    context: Mapping[str, str] = msgspec.field(default_factory=dict)
    workspace: str = ""
    trust: str = ""
    lasted_s: float = 0.0
    calls: int | None = None
    arguments: str = ""
    why: str = ""


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
"""The most events in each part."""


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
    """Group events by part, without changing their order. Parts without events are left out."""
    parts: defaultdict[Part, list[AuditEvent]] = defaultdict(list)
    for event in events:
        parts[part_of(event)].append(event)
    return parts


def newest(parts: Iterable[Sequence[AuditEvent]], limit: int) -> list[AuditEvent]:
    """Merge parts, each of which is newest first, and return their `limit` newest events, newest first."""
    placed = ((event, -place) for part in parts for place, event in enumerate(part))
    return [event for event, _ in nlargest(limit, placed, key=lambda pair: (pair[0].at, pair[1]))]


STEPS: Final[Mapping[int, float]] = {60: 7_200.0, 600: 90_000.0}
"""The length of a record → how long it is kept, both in seconds. To read a whole day of one-minute records would take
too long."""


class HistoryRecord(NamedTuple):
    """The metrics of one replica for one period, which begins at `at` (Unix time, a multiple of its length). The store
    does not read `body`."""

    at: int
    replica: str
    body: bytes


class HistoryStore(Protocol):
    """Store history records by length, time and replica. Every method may raise `StoreUnavailable`."""

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        """Store a record whose length `step_s` is one of `STEPS`. It replaces the replica's earlier record for that
        time."""

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        """Return the records of all replicas with `since` <= `at` < `until`, in order of time and replica."""
