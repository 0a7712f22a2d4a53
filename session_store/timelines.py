"""How the parts of a timeline are put together. Pure: for backends that keep a timeline as one value."""

from typing import Final

import msgspec
from msgspec.structs import replace

from session_store.ports.timelines import (
    MAX_ENTRIES,
    MAX_TIMELINE_BYTES,
    Timeline,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
)

__all__ = ["joined", "merged", "timeline_of"]

_entries: Final = msgspec.json.Decoder(TimelineEntry)


def merged(known: TimelineHead | None, part: TimelinePart, now: float) -> TimelineHead:
    """The head after a part was added."""
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
    """A timeline of encoded entries, in order of time."""
    entries = sorted((_entries.decode(line) for line in lines if line), key=lambda entry: entry.at)
    return Timeline(head=head, entries=entries)
