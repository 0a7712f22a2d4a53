"""What a watched process touches is sent once, in order, and a bounded number of things."""

import json
import os

from tests.requirements import requirement
from transports.upstream.walls.touched import MAX_THINGS, Touched


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
