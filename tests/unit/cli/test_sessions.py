"""`gateway.cli.sessions`: a timeline and an environment for a terminal."""

import io
import re
import time

import pytest
from rich.console import Console

from gateway.admin.reports import HiddenTools, ServerEnvironment, SessionEnvironment, TimelineRow, Variable
from gateway.cli.sessions import SHOWN_ENTRIES, environment_lines, timeline_lines, timeline_table
from tests.requirements import requirement

HOSTILE = "\u202eevil\nline"


def printed(*rows: TimelineRow, now: float) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(timeline_table(rows, now))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@requirement("ops.timeline-in-terminal")
def test_a_timeline_is_aligned_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        rows = [
            TimelineRow(at=-86_400.0, kind="session", name="created"),
            TimelineRow(at=3_600.0, kind="call", server="files", name="read", outcome="ok", took_s=0.012),
            TimelineRow(at=3_601.0, kind="call", server="files", name="read", outcome="ok", took_s=3.0, count=1_000),
            TimelineRow(at=3_602.0, kind="call", server="f", name=HOSTILE, outcome="error", took_s=2.0, why="no disk"),
        ]
        lines = printed(*rows, now=3_700.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert lines[0].split() == ["1969-12-31", "09:00:00", "session", "created"]
    assert lines[1].split() == ["10:00:00", "call", "files", "read", "12", "ms", "ok"]
    assert lines[2].split() == ["10:00:01", "call", "files", "read,", "1,000", "times", "3", "ms", "ok"]
    assert lines[3].endswith("error  no disk") and "\u202e" not in lines[3] and len(lines) == 4
    assert len({re.search("call", line).start() for line in lines[1:]}) == 1  # type: ignore[union-attr]


@requirement("ops.timeline-in-terminal")
def test_a_long_timeline_shows_its_newest_entries_and_says_so() -> None:
    rows = [TimelineRow(at=float(n), kind="call", name=f"n{n}") for n in range(SHOWN_ENTRIES + 10)]
    assert [*timeline_lines(rows)] == [f"the newest {SHOWN_ENTRIES} of {len(rows)} entries; --json has all"]
    lines = printed(*rows, now=0.0)
    assert len(lines) == SHOWN_ENTRIES and lines[-1].endswith(f"n{len(rows) - 1}")
    assert [*timeline_lines(())] == ["nothing has happened in it yet"] and not [*timeline_lines(rows[:3])]


@requirement("ops.environment")
def test_an_environment_is_lines_of_sentences_and_variables() -> None:
    files = ServerEnvironment(
        server="files", kind="command", why=["A sentence."], cwd="/w", temporary="/t", sandbox=["server files: strict"],
        hidden_tools=[HiddenTools(reason="the rule", count=2, names=["a", "b"])],
        variables=[
            Variable(name="A", origin="secret", where="mcpServers.files.env"),
            Variable(name="B", origin="inherited", where="gateway", value=HOSTILE),
        ],
    )  # fmt: skip
    hidden = ServerEnvironment(server="web", kind="command", hidden="because", why=["It does not exist."])
    found = SessionEnvironment(
        session="a", replica="r", held=True, endpoint="/mcp", principal="ann", trust="direct", why=["First."],
        servers=[files, hidden], more_servers=3,
    )  # fmt: skip
    lines = [*environment_lines(found)]
    assert lines[:4] == ["First.", "", "server files", "  A sentence."]
    assert "  2 hidden, because the rule: a, b" in lines and "  A  (secret: mcpServers.files.env)" in lines
    assert "  working folder /w" in lines and "  server files: strict" in lines
    assert lines[-3:] == ["server web", "  It does not exist.", "and 3 more servers"]
    assert not any("\n" in line or "\u202e" in line for line in lines)
