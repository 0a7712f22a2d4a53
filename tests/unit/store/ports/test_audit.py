"""The parts of the audit trail, each capped by itself."""

from typing import Any

import pytest

from session_store import AuditEvent
from session_store.ports.audit import PARTS, by_part, newest, part_of
from tests.requirements import requirement


@requirement("wall.audit")
@pytest.mark.parametrize(
    ("event", "principal", "part"),
    [
        ("operated", "", "operators"),
        ("refused", "", "strangers"),
        ("refused", "anonymous", "strangers"),
        ("created", "anonymous", "strangers"),
        ("called", "anonymous", "strangers"),
        ("refused", "api-key:alice", "refusals"),
        ("called", "api-key:alice", "calls"),
        ("created", "api-key:alice", "sessions"),
        ("ended", "api-key:alice", "sessions"),
    ],
)
def test_what_strangers_cause_is_kept_apart_from_what_named_principals_do(
    event: Any, principal: str, part: str
) -> None:
    assert part_of(AuditEvent(at=0.0, event=event, principal=principal)) == part
    assert part in PARTS


@requirement("wall.audit")
def test_events_keep_their_order_within_a_part() -> None:
    events = [AuditEvent(at=float(n), event="called", principal="p" if n % 2 else "") for n in range(6)]
    parts = by_part(events)
    assert [event.at for event in parts["calls"]] == [1.0, 3.0, 5.0]
    assert [event.at for event in parts["strangers"]] == [0.0, 2.0, 4.0]
    assert parts.keys() == {"calls", "strangers"}


def test_the_newest_of_several_parts_are_one_list() -> None:
    times = [5.0, 3.0, 3.0, 3.0]
    one, two = ([AuditEvent(at=at, event="called", reason=f"{part}{n}") for n, at in enumerate(times)] for part in "ab")
    assert [event.at for event in newest([one, two], 4)] == [5.0, 5.0, 3.0, 3.0]
    assert newest([one], 3) == one[:3], "events of the same time stay in the order of their part"
    assert newest([], 5) == [] and len(newest([one, two], 100)) == 8
