"""What is printed cannot steer the terminal."""

import io
from typing import Any

import msgspec
from rich.table import Table

from gateway.admin.reports import SessionRow
from gateway.cli.output import sessions_table
from gateway.cli.terminal import Terminal
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, STEERING, shows_only_text


@requirement("wall.decoded")
def test_tables_and_lines_show_what_they_were_given() -> None:
    names = ("session", "principal", "endpoint", "era", "client", "workspace", "trust", "owner")
    facts: dict[str, Any] = dict.fromkeys(names, HOSTILE)
    failure = {"at": 1.0, "server": HOSTILE, "name": HOSTILE, "why": HOSTILE, "outcome": "", "correlation": ""}
    facts |= {"age_s": 1, "idle_s": 1, "expires_in_s": 1, "calls": 1, "failed": 1, "failures": [failure]}
    row = msgspec.convert(facts | {"permissions": []}, SessionRow)
    plain = Table()
    plain.add_row(HOSTILE)
    for shown in (sessions_table([row], with_calls=True), plain, HOSTILE):
        out = Terminal()
        out.file = file = io.StringIO()
        out.print(shown)
        words = file.getvalue()  # cells may be cut short
        assert not any(character in words for character in STEERING) and "\\x1b]0;owned\\x07\\x1b[2J[link=" in words
    out.complain("error", HOSTILE)
    assert shows_only_text(file.getvalue())
