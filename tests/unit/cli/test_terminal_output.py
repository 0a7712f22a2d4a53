"""What is printed cannot steer the terminal, and an empty list says so."""

import dataclasses
import io
import time
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from gateway.admin.query_types import Page
from gateway.admin.report_types import (
    HiddenTools,
    ServerEnvironment,
    SessionEnvironment,
    SessionRow,
    TimelineRow,
    Variable,
)
from gateway.cli.output import facts_table, none_line, sessions_table, totals_line
from gateway.cli.sessions import SHOWN_ENTRIES, environment_lines, timeline_lines, timeline_table
from gateway.cli.terminal_greeting import StatusLine, progress_line, rendered
from gateway.cli.terminal_output import Terminal
from gateway.serving.startup_greeting import Greeting, ServerLine
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, STEERING, shows_only_text


@requirement("wall.decoded")
def test_tables_and_lines_show_what_they_were_given() -> None:
    failure = {"at": 1.0, "server": HOSTILE, "name": HOSTILE, "why": HOSTILE, "outcome": "", "correlation": ""}
    row = _row(HOSTILE, calls=1, failed=1, failures=[failure])
    plain = Table()
    plain.add_row(HOSTILE)
    for shown in (sessions_table([row], with_calls=True), plain, HOSTILE):
        words = _printed(shown)  # cells may be cut short
        assert not any(character in words for character in STEERING) and "\\x1b]0;owned\\x07\\x1b[2J[link=" in words
    out = Terminal()
    out.file = file = io.StringIO()
    out.print_labelled("error", HOSTILE)
    assert shows_only_text(file.getvalue())


def _printed(shown: Any, width: int = 0) -> str:
    out = Terminal()
    out.width = width or out.width
    out.file = file = io.StringIO()
    out.print(shown)
    return file.getvalue()


def _row(name: str = "12345678", **more: Any) -> SessionRow:
    names = ("session", "principal", "endpoint", "era", "client", "workspace", "trust", "owner")
    facts = {**dict.fromkeys(names, name), "age_s": 1, "idle_s": 1, "expires_in_s": 90, "permissions": ["a", "b"]}
    return msgspec.convert(facts | more, SessionRow)


@requirement("ops.readable")
def test_a_long_error_leaves_the_other_columns_their_width() -> None:
    failure = {"at": 1.0, "server": "s", "name": "t", "why": "long " * 200, "outcome": "", "correlation": ""}
    for width in (110, 220):
        text = _printed(sessions_table([_row(calls=3, failed=1, failures=[failure])], with_calls=True), width)
        head, line = text.splitlines()
        assert line.split()[:5] == ["12345678"] * 5 and "1 min 30 s" in line and "t: long" in line
        assert len(line.rstrip()) <= width and head.split()[-1] == "failure"


@requirement("ops.readable")
def test_facts_are_shown_without_json() -> None:
    failures = [{"at": 0.0, "server": "s", "why": "no route", "took_s": 90}, {"at": 60.0, "server": "t", "why": "gone"}]
    facts = msgspec.to_builtins(_row(metadata={"plan": "b", "size": "2"}, state_bytes=2_048))
    text = _printed(facts_table(facts | {"failures": failures, "nothing": None, "is_new": True}), 120)
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert not any(character in text for character in '[]{}"')
    assert lines >= {"expires in 1 min 30 s", "state bytes 2.0 KiB", "permissions a, b", "size: 2", "is new True"}
    assert "at: 1970-01-01 00:01:00 server: t why: gone" in lines
    assert any(line.endswith("server: s why: no route took: 1 min 30 s") for line in lines)


@requirement("ops.session-list")
@pytest.mark.parametrize(
    ("page", "is_all", "said"),
    [
        (Page(sessions=[]), True, "no session is live: connect a client"),
        (Page(sessions=[]), False, "leave out a filter"),
        (Page(sessions=[], is_reading=True), True, "no session has been found yet"),
        (Page(sessions=[], unanswered=1), True, "no session has been found yet"),
    ],
)
def test_an_empty_list_says_so(page: Page, is_all: bool, said: str) -> None:
    assert said in none_line(page, is_all=is_all)
    assert ("still reading" in totals_line(page)) is page.is_reading


# -- `gateway.cli.sessions`: a timeline and an environment for a terminal


STEERED = "\u202eevil\nline"


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
            TimelineRow(at=3_602.0, kind="call", server="f", name=STEERED, outcome="error", took_s=2.0, why="no disk"),
        ]
        lines = printed(*rows, now=3_700.0)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert lines[0].split() == ["1969-12-31", "09:00:00", "session", "created"]
    assert lines[1].split() == ["10:00:00", "call", "files", "read", "12", "ms", "ok"]
    assert lines[2].split() == ["10:00:01", "call", "files", "read,", "1,000", "times", "3", "ms", "ok"]
    assert lines[3].endswith("error  no disk") and "\u202e" not in lines[3] and len(lines) == 4
    assert len({line.index("call") for line in lines[1:]}) == 1


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
            Variable(name="B", origin="inherited", where="gateway", value=STEERED),
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


# -- The greeting as text: one screen, and nothing in it that breaks a URL


def line(name: str, **more: Any) -> ServerLine:
    facts: dict[str, Any] = {"state": "ok", "tools": 3, "about": "2026-07-28", "sandbox": "standard"} | more
    return ServerLine(name=name, **facts)


GREETING = Greeting(
    url="http://127.0.0.1:8080/mcp", is_ready=True, scope="", console="http://127.0.0.1:8080/admin/sign-in/" + "x" * 43,
    has_link=True, is_announced=True, store="in memory", store_fault="", callers="everyone", needs_token=False, gaps=0,
    servers=(line("files", tools=1), line("git", state="failing", tools=None, about=HOSTILE)),
)  # fmt: skip


def text_of(**changes: Any) -> str:
    screen = io.StringIO()
    Console(file=screen, width=60, soft_wrap=True).print(rendered(dataclasses.replace(GREETING, **changes), 1.24))
    return screen.getvalue()


@requirement("first.greeting")
def test_the_greeting_names_what_is_served_and_where() -> None:
    text = text_of()
    assert "ready in 1.2 s" in text and f" {GREETING.url}\n" in text and f" {GREETING.console}\n" in text
    assert "✓ files  1 tool " in text and "✗ git" in text and "sandbox standard" in text
    assert f"claude mcp add --transport http gateway {GREETING.url}\n" in text
    assert "Operate   mcp-session-gateway sessions list" in text and shows_only_text(text)


@requirement("first.greeting")
def test_the_greeting_fits_on_a_screen_and_says_what_needs_care() -> None:
    text = text_of(servers=tuple(line(f"s{n}") for n in range(200)), gaps=2, console="", is_announced=False)
    assert len(text.splitlines()) <= 25 and "and 188 more" in text and "for 2 of the servers" in text
    assert "Console" not in text and "Operate" not in text and "sign" not in text
    assert "Authorization: Bearer $MCP_TOKEN" in text_of(needs_token=True)


@requirement("first.store")
def test_a_gateway_that_readyz_refuses_is_not_called_ready() -> None:
    text = text_of(store="redis://…@db/0", store_fault="connection refused")
    assert "ready in" not in text and "waits for its store" in text
    text += text_of(is_ready=False) + text_of(is_ready=False, servers=(line("git", state="failing"),))
    assert "ready in" not in text and "not ready: it waits for the other" in text and "not ready: no server has" in text
    assert "redis://…@db/0" in text and "does not answer: connection refused" in text and "503" in text


@requirement("first.greeting")
def test_progress_names_the_servers_that_have_not_answered() -> None:
    servers = (line("files"), line("git", state="starting"), line("gone", state="failing"))
    assert progress_line(servers, 3.4) == "starting 3 servers, 3 s: waiting for git"
    assert progress_line(servers[:1], 0.0) == "starting"


CLEAR = "\r\x1b[2K"


@requirement("first.greeting")
def test_lines_of_the_log_stay_above_the_status() -> None:
    terminal = io.StringIO()
    line = StatusLine(terminal)
    line.write("one\n")
    line.show("waiting")
    line.show("waiting")
    line.write("two\n")
    line.show("")
    line.write("three\n")
    assert terminal.getvalue() == f"one\nwaiting{CLEAR}two\nwaiting{CLEAR}three\n"


@requirement("ops.readable")
def test_calls_that_a_killed_gateway_has_not_stored_are_unknown() -> None:
    rows = [_row(state="detached"), _row(state="detached", calls=7, failed=1), _row(state="idle")]
    lines = _printed(sessions_table(rows, with_calls=True)).splitlines()[1:]
    assert [line.split()[-2:] for line in lines] == [["?", "?"], ["7", "1"], ["0", "0"]]


@requirement("ops.config")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_for_people_at_a_terminal(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: is_terminal, raising=False)
    out = Terminal(stderr=True)
    out.file = written
    out.print_waiting("for notes")
    assert ("waiting for notes" in written.getvalue()) is is_terminal
