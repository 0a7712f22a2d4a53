"""What a gate tells is gathered before it is sent: refusals, and what a watched process touches."""

import json
import os

from tests.requirements import requirement
from transports.upstream.walls.gate_reports import MAX_KINDS, MAX_THINGS, RefusalQueue, Touched


@requirement("box.refusals-seen")
def test_the_first_ones_are_sent_at_once_and_a_flood_once_a_second() -> None:
    refusals, packets = RefusalQueue(), []
    for n in range(1_000):
        refusals.add("connect", "10.0.0.5:443", "a private address")
        packets.append(refusals.take(n / 1_000))
    sent = [packet for packet in packets if packet]
    assert len(sent) == 8 and sent[0][0]["count"] == 1 and refusals.due_in(1.0) is not None
    [last] = refusals.take(2.0)
    assert last["count"] == 992 and refusals.due_in(2.0) is None and refusals.take(9.0) == []


@requirement("box.refusals-seen")
def test_different_ones_are_bounded_and_all_are_counted() -> None:
    refusals = RefusalQueue()
    for n in range(1_000):
        refusals.add("connect", f"10.0.0.5:{n}", "a private address")
    sent = refusals.take(0.0, everything=True)
    assert len(sent) == MAX_KINDS + 1 and sum(each["count"] for each in sent) == 1_000 and sent[-1]["kind"] == "other"


@requirement("box.learn")
def test_each_thing_is_sent_once_and_stays_until_it_is_sent() -> None:
    touched = Touched()
    assert touched.due_in(5.0) is None and touched.peek(5.0) == []
    for _ in range(3):
        touched.add("r", "/a")
        touched.add("w", "/a")
    assert touched.peek(5.0) == [("r", "/a"), ("w", "/a")]
    assert touched.peek(5.01) == [] and touched.due_in(5.01) is not None, "one packet in a tenth of a second"
    assert touched.peek(5.2) == [("r", "/a"), ("w", "/a")], "it has not been sent"
    touched.sent(2)
    touched.add("r", "/a")
    assert touched.due_in(5.2) is None and touched.peek(9.0, everything=True) == []


@requirement("box.learn")
def test_packets_and_memory_are_bounded() -> None:
    touched = Touched()
    for number in range(MAX_THINGS + 500):
        touched.add("r", f"/{number}" + 4_000 * "\x01")
    count = 0
    while packet := touched.peek(0.0, everything=True):
        assert len(json.dumps(packet)) < 60_000
        touched.sent(len(packet))
        count += len(packet)
    assert count == MAX_THINGS


@requirement("box.learn")
def test_a_name_that_is_no_text_counts_as_its_folder() -> None:
    touched = Touched()
    for path in (b"/srv/caf\xe9.txt", b"/srv/\xff/\xfe/x", "/srv/caf\xe9.txt".encode()):
        touched.add("r", os.fsdecode(path))
    packet = touched.peek(0.0, everything=True)
    assert json.loads(json.dumps(packet).encode()) == [["r", "/srv"], ["r", "/srv/caf\xe9.txt"]]
