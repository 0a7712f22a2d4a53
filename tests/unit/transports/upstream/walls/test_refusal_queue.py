"""Refusals are gathered before they are sent."""

from tests.requirements import requirement
from transports.upstream.walls.refusal_queue import MAX_KINDS, RefusalQueue

pytestmark = requirement("box.refusals-seen")


def test_the_first_ones_are_sent_at_once_and_a_flood_once_a_second() -> None:
    refusals, packets = RefusalQueue(), []
    for n in range(1_000):
        refusals.add("connect", "10.0.0.5:443", "a private address")
        packets.append(refusals.take(n / 1_000))
    sent = [packet for packet in packets if packet]
    assert len(sent) == 8 and sent[0][0]["count"] == 1 and refusals.due_in(1.0) is not None
    [last] = refusals.take(2.0)
    assert last["count"] == 992 and refusals.due_in(2.0) is None and refusals.take(9.0) == []


def test_different_ones_are_bounded_and_all_are_counted() -> None:
    refusals = RefusalQueue()
    for n in range(1_000):
        refusals.add("connect", f"10.0.0.5:{n}", "a private address")
    sent = refusals.take(0.0, everything=True)
    assert len(sent) == MAX_KINDS + 1 and sum(each["count"] for each in sent) == 1_000 and sent[-1]["kind"] == "other"
