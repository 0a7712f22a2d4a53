"""Define the stores of the data about the last day that operators see: the timeline of each session (its events), and
the history of metrics."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

KEPT_S: Final = 86_400.0
"""Seconds for which a timeline is kept after its last entry was added."""

MAX_ENTRIES: Final = 200
"""The most entries that are kept of one session. The oldest are dropped."""

MAX_TIMELINE_BYTES: Final = 64 << 10
"""The most bytes that are kept of one session's newest entries, as JSON: twice the size of 200 common ones. Servers and
clients choose some of their texts."""

MAX_SESSIONS: Final = 10_000
"""The most timelines that are kept. Beyond this, those not written for the longest time are dropped."""

TimelineKind = Literal["call", "question", "task", "server", "move", "refusal", "session"]
"""The kind of a timeline entry. `server`: a process or a connection was started or replaced. `move`: another replica
took over the session. `refusal`: by the policy or by a sandbox. `session`: it was opened, was resumed or ended."""


class TimelineEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One event of a session, or several equal ones. No entry has arguments or results of calls, but a server's own
    error message may repeat some."""

    at: float
    """The time of the event, or of the first of several, in seconds since the epoch."""
    kind: TimelineKind
    server: str = ""
    name: str = ""
    """The tool or the method, or the request of a server to its client."""
    outcome: str = ""
    """Empty if there is none."""
    took_s: float = 0.0
    """The duration of all `count` events together."""
    count: int = 1
    """The number of equal events, which came between `at` and `until`."""
    until: float = 0.0
    correlation: str = ""
    why: str = ""
    """An error message or a reason."""
    replica: str = ""


class TimelineHead(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a timeline about its session."""

    session: str
    """The start of the session's id, as logs show it."""
    principal: str = ""
    client: str = ""
    endpoint: str = ""
    era: str = ""
    workspace: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    ended: str = ""
    """How the session ended, at `ended_at`; empty while it lives."""
    ended_at: float = 0.0
    calls: int = 0
    """The calls on all replicas; `failed` counts those of them that failed."""
    failed: int = 0


class TimelinePart(msgspec.Struct, frozen=True, kw_only=True):
    """An addition to one timeline: new entries, and facts of the session (`head`). Its `calls` and `failed` are added
    to the stored numbers. If it has no principal, the stored facts stay."""

    head: TimelineHead
    entries: list[TimelineEntry] = []


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The timeline of a session: its newest entries, in order of time."""

    head: TimelineHead
    entries: list[TimelineEntry] = []


class TimelineStore(Protocol):
    """Store timelines by the start of the session's id (`session_store.session.redact`). Every method may raise
    `StoreUnavailable`."""

    async def add(self, parts: Sequence[TimelinePart]) -> None:
        """Add entries to timelines. Parts of one session may come from several replicas, in any order."""

    async def read(self, session: str) -> Timeline | None:
        """Return the timeline of the session whose id starts with `session` (8 characters); None if there is none."""

    async def names(self, begins: str) -> list[str]:
        """Return the names of those timelines whose name begins with `begins`, sorted. A timeline's name is the start
        of its session's id."""

    async def newest(self, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        """Return the facts of the most recently written timelines, newest first: at most `limit` of them, after the
        first `skip`."""


_entries: Final = msgspec.json.Decoder(TimelineEntry)
head_of: Final = msgspec.json.Decoder(TimelineHead).decode
"""Return the facts of a timeline, decoded from JSON."""


def merged(known: TimelineHead | None, part: TimelinePart, now: float) -> TimelineHead:
    """Return the facts of a timeline after `part` was added at the time `now`: the numbers of calls and failures are
    summed. `known`: the stored facts; None if the timeline is new."""
    new = part.head
    if known is None:
        return replace(new, updated_at=now)
    facts = new if new.principal else known
    return replace(
        facts,
        updated_at=now,
        ended=new.ended or known.ended,
        ended_at=new.ended_at or known.ended_at,
        calls=known.calls + new.calls,
        failed=known.failed + new.failed,
    )


def extended(head: bytes, entries: bytes, part: TimelinePart, now: float) -> tuple[bytes, bytes]:
    """Return the encoded facts and entries of a timeline after `part` was added at the time `now`. `head`, `entries`:
    what an earlier call returned, empty if the timeline is new. Entries are JSON, one on each line. The oldest are
    dropped beyond `MAX_ENTRIES` and `MAX_TIMELINE_BYTES`."""
    lines = entries.split(b"\n") if entries else []
    lines += [msgspec.json.encode(entry) for entry in part.entries]
    lines = lines[-MAX_ENTRIES:]
    over = sum(map(len, lines)) - MAX_TIMELINE_BYTES
    oldest = 0
    while over > 0:
        over -= len(lines[oldest])
        oldest += 1
    facts = merged(head_of(head) if head else None, part, now)
    return msgspec.json.encode(facts), b"\n".join(lines[oldest:])


def timeline_of(head: TimelineHead, lines: list[bytes]) -> Timeline:
    """Return the timeline with these facts and entries, in order of time. `lines`: the entries, each encoded as
    JSON."""
    entries = sorted((_entries.decode(line) for line in lines if line), key=lambda entry: entry.at)
    return Timeline(head=head, entries=entries)


STEPS: Final[Mapping[int, float]] = {60: 7_200.0, 600: 90_000.0}
"""For each length of a history record, the time for which it is kept, both in seconds. There are longer records because
reading a whole day of one-minute records would take too long."""


class HistoryRecord(NamedTuple):
    """The metrics of one replica for one period. The period begins at `at` (Unix time, a multiple of the period's
    length). The store does not read `body`."""

    at: int
    replica: str
    body: bytes


class HistoryStore(Protocol):
    """Store the history of metrics. A record covers one period of one replica; `STEPS` has the lengths of periods.
    Every method may raise `StoreUnavailable`."""

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        """Store the record of a period of `step_s` seconds, which is one of `STEPS`. It replaces an earlier record of
        the same replica for that period."""

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        """Return the records of all replicas with `since` <= `at` < `until`, in order of time and replica."""
