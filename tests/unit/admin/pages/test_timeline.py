"""`gateway.admin.pages.timeline`: lanes of what happened in a session, and what rows say beside themselves."""

import re
from types import SimpleNamespace
from typing import Any

from gateway.admin.pages.events import folded
from gateway.admin.pages.session import exceptions_in
from gateway.admin.pages.timeline import explained, notes_of, picture_of
from gateway.admin.report_types import TimelineRow
from gateway.observability.observed_call import Failure
from gateway.sandbox.refusal_reports import RefusedRow
from tests.requirements import requirement

ROWS = [
    TimelineRow(at=100.0, kind="session", name="created"),
    TimelineRow(at=110.0, kind="call", server="files", name="<read>", outcome="ok", took_s=5.0, until=115.0),
    TimelineRow(at=200.0, kind="call", server="files", name="read", outcome="tool error", took_s=0.001, until=200.001),
    TimelineRow(at=120.0, kind="call", server="web", name="get", outcome="ok", took_s=9.0, count=3, until=180.0),
    TimelineRow(at=190.0, kind="refusal", name="delete", why="read-only"),
]


@requirement("ops.timeline")
def test_each_kind_and_each_server_has_a_lane_on_one_scale() -> None:
    picture = picture_of(ROWS)
    assert picture is not None
    assert [lane.name for lane in picture.lanes] == ["Session", "files calls", "web calls", "Refused"]
    assert (picture.begin, round(picture.end)) == (100.0, 200)
    files, web = picture.lanes[1].svg, picture.lanes[2].svg
    places = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', files)]
    assert [(round(x), round(width)) for x, width in places] == [(100, 50), (997, 3)]
    assert 'class="mark failed"' in files and 'aria-label="files calls: 2, 1 failed"' in files
    assert 'class="mark call many"' in web and "(3 times)" in web
    assert "<read>" not in files and "&lt;read&gt;" in files


def test_nothing_has_no_picture_and_one_moment_has_one() -> None:
    assert picture_of([]) is None
    moment = picture_of(ROWS[:1])
    assert moment is not None and 'x="0.0"' in moment.lanes[0].svg


def call(at: float, took_s: float, outcome: str = "ok", server: str = "notes") -> TimelineRow:
    return TimelineRow(at=at, kind="call", server=server, name="x", outcome=outcome, took_s=took_s, until=at + took_s)


def started(at: float, took_s: float, why: str = "") -> TimelineRow:
    return TimelineRow(at=at, kind="server", server="notes", name="started", took_s=took_s, why=why)


@requirement("ops.timeline")
def test_a_call_that_waited_for_its_server_says_how_long() -> None:
    told = [
        (call(0, 0.5), []),
        (started(10.0, 2.0), []),
        (call(10.001, 2.5), ["waited 2 s for the start of notes"]),
        (call(11.0, 1.5), ["waited 1 s for the start of notes"]),
        (call(10.5, 5, server="web"), []),
        (call(20, 3), []),
    ]
    assert notes_of([row for row, _ in told], []) == [notes for _, notes in told]
    modern = notes_of([started(10.0, 0.03, "no handshake"), call(10.0, 2.7)], [])
    assert modern == [[], ["the first answer of a new process: 2.7 s includes its start"]]
    assert notes_of([started(10.0, 0.02), call(10.0, 0.06)], []) == [[], []], "too short to be of interest"


@requirement("ops.console-why")
def test_a_failed_call_says_what_was_refused_then() -> None:
    rows = [call(60, 0.1, "tool error"), call(100, 2, "tool error"), call(101, 1)]
    [old, failed, good] = notes_of(rows, [refused(101.5, "/etc/x", "notes")])
    assert failed == ["its sandbox refused file /etc/x just before: read allows it"]
    assert not old and not good


def refused(at: float, what: str, server: str = "files") -> RefusedRow:
    return RefusedRow(at=at, server=server, kind="file", what=what, why="not granted", allows="read", count=1)


@requirement("ops.console-why")
def test_a_failure_has_what_its_server_was_refused_just_before() -> None:
    failures = [
        Failure(at=at, server="files", name="tools/call read", outcome="tool error", why="Error", correlation="c")
        for at in (100.0, 200.0)
    ]
    before, after = refused(99.0, "/a"), refused(100.5, "/b")
    others = [refused(80.0, "/old"), refused(99.9, "/c", server="git")]
    row: Any = SimpleNamespace(failures=failures, refused=[before, after, *others])
    assert explained(row) == [(failures[0], [after, before]), (failures[1], [])]


# -- What stands above the stderr of a session


@requirement("ops.console-why")
def test_the_cause_in_the_middle_of_a_traceback_is_found() -> None:
    cause = "PermissionError: [Errno 13] Permission denied: '/srv/secret'"
    lines = ["Traceback (most recent call last):", *(["  File x"] * 60), cause, "", *(["  File y"] * 60)]
    told = "mcp.server.fastmcp.exceptions.ToolError: Error executing tool read_secret"
    assert exceptions_in([*lines, f"  | {told}", "INFO done"]) == [cause, told]
    assert exceptions_in([cause, told, cause]) == [told, cause], "each once, where it was last"
    assert exceptions_in(["no Error here", "Error", "x" * 100_000 + "Error: y"]) == []
    assert len(exceptions_in([f"E{number}Error: x" for number in range(50)])) == 4


@requirement("ops.console-why")
def test_an_exception_that_is_broken_into_lines_is_told_whole() -> None:
    column = [
        *("╰──────────────────╯", "PermissionError: [Errno 13]", "Permission denied:", "'/srv/secret'", ""),
        *("The above exception was the direct cause", "UnexpectedToolError: Error executing", "tool read_secret"),
        "╭─ Traceback ─╮",
    ]
    assert exceptions_in([" " * 29 + line if line else "" for line in column]) == [
        "PermissionError: [Errno 13] Permission denied: '/srv/secret'",
        "UnexpectedToolError: Error executing tool read_secret",
    ]
    assert exceptions_in(["ValueError: x", "INFO what comes next"]) == ["ValueError: x"]


# -- Events that are alike share a row


def called(at: float, tool: str = "a/sleep", **facts: Any) -> dict[str, Any]:
    return {"at": at, "event": "called", "session": "abcd", "tool": tool, "outcome": "ok", "count": 1, **facts}


@requirement("ops.console")
def test_neighbours_that_are_alike_share_a_row_and_others_have_rows_of_their_own() -> None:
    alike = [called(9.0, took_s=0.2, correlation="c9"), called(8.0, took_s=0.7, correlation="c8", count=3), called(7.0)]
    others = [
        called(6.0, "a/fail"),
        called(5.0, took_s=0.1),
        called(4.0, session="efgh"),
        called(3.0, outcome="tool error"),
        called(2.0, outcome="tool error", reason="it failed"),
        called(1.0, event="refused"),
        called(0.5, event="ended", calls=3),
        called(0.4, event="ended", calls=4),
    ]
    assert folded(alike + others) == [called(9.0, took_s=0.7, correlation="c9", count=5, since=7.0), *others]
