"""What happened in each session, kept for a day after the last of it, so that a session can be looked at afterwards."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

__all__ = [
    "KEPT_S",
    "MAX_ENTRIES",
    "MAX_SESSIONS",
    "MAX_TIMELINE_BYTES",
    "Timeline",
    "TimelineEntry",
    "TimelineHead",
    "TimelineKind",
    "TimelinePart",
    "TimelineStore",
    "joined",
    "merged",
    "timeline_of",
]

KEPT_S: Final = 86_400.0
"""How long a timeline is kept after its last entry was added, in seconds."""

MAX_ENTRIES: Final = 200
"""The newest entries of one session that are kept."""

MAX_TIMELINE_BYTES: Final = 64 << 10
"""The newest entries of one session that are kept, encoded as JSON: twice what 200 common ones take. Servers and
clients choose some of their words."""

MAX_SESSIONS: Final = 10_000
"""Timelines that are kept; beyond it those that were written longest ago go."""

TimelineKind = Literal["call", "question", "task", "server", "move", "refusal", "session"]
"""`server`: a process or a connection was started or replaced. `move`: another replica has the session since.
`refusal`: of the policy or of a sandbox. `session`: it was opened, it came back, it ended."""


class TimelineEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One thing that happened, or `count` alike between `at` and `until` (Unix time).

    `name` is the tool or the method, or what a server asked its client. `took_s` is the duration, the sum of all of
    them. `outcome` is empty where there is none. `why` is the message of an error or the reason. No entry has arguments
    or results of calls, but a server's own error message may repeat some.
    """

    at: float
    kind: TimelineKind
    server: str = ""
    name: str = ""
    outcome: str = ""
    took_s: float = 0.0
    count: int = 1
    until: float = 0.0
    correlation: str = ""
    why: str = ""
    replica: str = ""


class TimelineHead(msgspec.Struct, frozen=True, kw_only=True):
    """Whose timeline it is. `session` is how the id begins, as logs show it. `ended` is empty while it has not ended:
    how it ended, and `ended_at` when. `calls` and `failed` count those of all replicas."""

    session: str
    principal: str = ""
    client: str = ""
    endpoint: str = ""
    era: str = ""
    workspace: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    ended: str = ""
    ended_at: float = 0.0
    calls: int = 0
    failed: int = 0


class TimelinePart(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to one timeline. `calls` and `failed` of the head are added to those that are kept. A head without
    a principal does not replace the facts that are known."""

    head: TimelineHead
    entries: list[TimelineEntry] = []


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The newest entries of a session, in order of time."""

    head: TimelineHead
    entries: list[TimelineEntry] = []


class TimelineStore(Protocol):
    """Timelines by how the id of their session begins (`session_store.session.redact`). Every method may raise
    `StoreUnavailable`."""

    async def add(self, parts: Sequence[TimelinePart]) -> None:
        """Add entries. Parts of one session may come from several replicas, in any order."""
        ...

    async def read(self, session: str) -> Timeline | None:
        """Return the timeline of that session; None if there is none, or no longer."""
        ...

    async def names(self, begins: str) -> list[str]:
        """Return the sessions whose names begin like that and that have a timeline, in order of name."""
        ...

    async def newest(self, limit: int, *, skip: int = 0) -> list[TimelineHead]:
        """Return those that were written last, the newest first. `skip`: how many of the newest are left out."""
        ...


_entries: Final = msgspec.json.Decoder(TimelineEntry)


def merged(known: TimelineHead | None, part: TimelinePart, now: float) -> TimelineHead:
    """Return the head after a part was added."""
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


def joined(known: bytes, entries: list[TimelineEntry]) -> bytes:
    """Encoded entries, one a line, after these were added: the newest, `MAX_ENTRIES` and `MAX_TIMELINE_BYTES`."""
    lines = known.split(b"\n") if known else []
    lines += [msgspec.json.encode(entry) for entry in entries]
    lines = lines[-MAX_ENTRIES:]
    over = sum(map(len, lines)) - MAX_TIMELINE_BYTES
    oldest = 0
    while over > 0:
        over -= len(lines[oldest])
        oldest += 1
    return b"\n".join(lines[oldest:])


def timeline_of(head: TimelineHead, lines: list[bytes]) -> Timeline:
    """Return a timeline of encoded entries, in order of time."""
    entries = sorted((_entries.decode(line) for line in lines if line), key=lambda entry: entry.at)
    return Timeline(head=head, entries=entries)
