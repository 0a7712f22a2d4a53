"""`gateway.admin.timeline_notes`: what stands beside a call that failed, or that waited."""

from gateway.admin.reports import TimelineRow
from gateway.admin.timeline_notes import notes_of
from gateway.sandbox.refusals import RefusedRow
from tests.requirements import requirement


def call(at: float, took_s: float, outcome: str = "ok", server: str = "notes") -> TimelineRow:
    return TimelineRow(at=at, kind="call", server=server, name="x", outcome=outcome, took_s=took_s, until=at + took_s)


def started(at: float, took_s: float, why: str = "") -> TimelineRow:
    return TimelineRow(at=at, kind="server", server="notes", name="started", took_s=took_s, why=why)


@requirement("ops.timeline")
def test_a_call_that_waited_for_its_server_says_how_long() -> None:
    rows = [
        call(0, 0.5),
        started(10.0, 2.0),
        call(10.001, 2.5),
        call(11.0, 1.5),
        call(10.5, 5, server="web"),
        call(20, 3),
    ]
    assert notes_of(rows, []) == [
        [], [], ["waited 2 s for the start of notes"], ["waited 1 s for the start of notes"], [], [],
    ]  # fmt: skip
    modern = notes_of([started(10.0, 0.03, "no handshake"), call(10.0, 2.7)], [])
    assert modern == [[], ["the first answer of a new process: 2.7 s includes its start"]]
    assert notes_of([started(10.0, 0.02), call(10.0, 0.06)], []) == [[], []], "too short to be of interest"


@requirement("ops.console-why")
def test_a_failed_call_says_what_was_refused_then() -> None:
    refused = [RefusedRow(101.5, "notes", "file", "/etc/x", "not granted", 'sandbox.read = ["/etc/x"]', 2)]
    rows = [call(60, 0.1, "tool error"), call(100, 2, "tool error"), call(101, 1)]
    [old, failed, good] = notes_of(rows, refused)
    assert failed == ['its sandbox refused file /etc/x just before: sandbox.read = ["/etc/x"] allows it']
    assert not old and not good
