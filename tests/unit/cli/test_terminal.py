"""What is printed cannot steer the terminal."""

import io
from typing import Any

from rich.table import Table

from gateway.cli.sessions import sessions_table
from gateway.cli.terminal import Terminal
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, STEERING, shows_only_text


@requirement("wall.decoded")
def test_tables_and_lines_show_what_they_were_given() -> None:
    row: dict[str, Any] = dict.fromkeys(("session", "principal", "endpoint", "era", "client"), HOSTILE)
    failure = {"name": HOSTILE, "why": HOSTILE, "outcome": ""}
    row |= {"age_s": 1, "idle_s": 1, "expires_in_s": 1, "calls": 1, "failed": 1, "failures": [failure]}
    plain = Table()
    plain.add_row(HOSTILE)
    for shown in (sessions_table([row]), plain, HOSTILE):
        out = Terminal()
        out.file = file = io.StringIO()
        out.print(shown)
        words = file.getvalue()  # cells may be cut short
        assert not any(character in words for character in STEERING) and "\\x1b]0;owned\\x07\\x1b[2J[link=" in words
    out.complain("error", HOSTILE)
    assert shows_only_text(file.getvalue())
