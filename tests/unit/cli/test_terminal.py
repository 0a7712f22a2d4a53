"""What is printed cannot steer the terminal, and an empty list says so."""

import io
from typing import Any

import msgspec
import pytest
from rich.table import Table

from gateway.admin.operators import Page
from gateway.admin.reports import SessionRow
from gateway.cli.output import facts_table, none_line, sessions_table, totals_line
from gateway.cli.terminal import Terminal
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
    out.complain("error", HOSTILE)
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
    assert lines >= {"expires in 1 min 30 s", "state 2.0 KiB", "permissions a, b", "size: 2", "is new True"}
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
