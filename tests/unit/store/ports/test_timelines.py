"""Parts of a timeline put together. What a timeline has room for: `BackendContract`."""

from session_store.ports.timelines import TimelineHead, TimelinePart, merged
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
