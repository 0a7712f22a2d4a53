"""Parts of a timeline put together."""

from session_store.ports.timelines import (
    MAX_ENTRIES,
    MAX_TIMELINE_BYTES,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
    joined,
    merged,
    timeline_of,
)
from tests.requirements import requirement

pytestmark = requirement("ops.timeline")

ANN = TimelineHead(session="abcdefgh", principal="ann", calls=2, failed=1)


def test_counts_add_up_and_a_head_without_a_principal_replaces_no_fact() -> None:
    first = merged(None, TimelinePart(head=ANN), 10.0)
    assert (first.principal, first.calls, first.updated_at) == ("ann", 2, 10.0)
    later = merged(
        first, TimelinePart(head=TimelineHead(session="abcdefgh", calls=3, ended="idle", ended_at=19.0)), 20.0
    )
    assert (later.principal, later.calls, later.failed, later.updated_at) == ("ann", 5, 1, 20.0)
    last = merged(later, TimelinePart(head=ANN), 30.0)
    assert (last.ended, last.ended_at, last.calls) == ("idle", 19.0, 7), "what has ended does not come back"


def test_the_newest_entries_stay_and_are_shown_in_order_of_time() -> None:
    kept = joined(b"", [TimelineEntry(at=float(at), kind="call") for at in range(MAX_ENTRIES)])
    kept = joined(kept, [TimelineEntry(at=-1.0, kind="move", why="a\nb")])
    entries = timeline_of(ANN, kept.split(b"\n")).entries
    assert len(entries) == MAX_ENTRIES
    assert (entries[0].at, entries[0].why, entries[1].at, entries[-1].at) == (-1.0, "a\nb", 1.0, MAX_ENTRIES - 1)
    assert timeline_of(ANN, [b""]).entries == []


def test_large_entries_take_no_more_room_than_a_timeline_may() -> None:
    kept = b""
    for at in range(MAX_ENTRIES):
        kept = joined(kept, [TimelineEntry(at=float(at), kind="refusal", why="w" * 1_800)])
    entries = timeline_of(ANN, kept.split(b"\n")).entries
    assert MAX_TIMELINE_BYTES - 4_000 < len(kept) < MAX_TIMELINE_BYTES + MAX_ENTRIES
    assert entries[-1].at == MAX_ENTRIES - 1
