"""What strangers have named cannot steer the terminal of whoever operates."""

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.table import Table

from gateway.cli.sessions import print_event, sessions_table
from gateway.cli.terminal import Terminal
from gateway.observability.logs import configure_logging
from gateway.observability.visible import as_json, visible, visible_line
from tests.e2e.test_review import told
from tests.requirements import requirement
from tests.support.raw import Legacy
from tests.support.running import PROBE, running_gateway, server

HOSTILE = "\x1b]0;owned\x07\x1b[2J[link=http://evil.example]click[/link]\x9b31m\u202edesrever\x7f\x08"
STEERING = ("\x1b", "\x07", "\x9b", "\u202e", "\x7f", "\x08")


def shows_only_text(words: str) -> bool:
    return not any(character in words for character in STEERING) and "[link=http://evil.example]" in words


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


@requirement("wall.decoded")
def test_json_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(as_json([HOSTILE])) == [HOSTILE] and shows_only_text(as_json([HOSTILE]))
    event = {"at": 0.0, "event": "refused", "reason": HOSTILE + "\nforged line", "tool": HOSTILE}
    print_event(event, in_json=True)
    words = capsys.readouterr().out
    assert shows_only_text(words) and json.loads(words) == event
    assert visible("a\tb\nc\x1b") == "a\tb\nc\\x1b" and visible_line("a\nb") == "a\\x0ab"


@requirement("wall.decoded")
@pytest.mark.parametrize("form", ["pretty", "logfmt", "json"])
def test_the_log_shows_what_it_was_told(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root, stderr = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", stderr)
    try:
        configure_logging("info", form)
        stderr.truncate(0)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logging.getLogger("t").exception("server %s", HOSTILE + "\nlevel=info forged", extra={"tool": HOSTILE})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    words = stderr.getvalue()
    # Of our own, only the colours of the pretty form.
    for colour in ("\x1b[0m", "\x1b[1m", "\x1b[2m", *(f"\x1b[{n}m" for n in range(30, 38)), "\x1b[22m"):
        words = words.replace(colour, "")
    assert shows_only_text(words)
    assert not any(line.startswith("level=info forged") for line in words.splitlines())


@requirement("wall.decoded")
def test_the_commands_show_what_servers_are_called(http: httpx.Client, tmp_path: Path) -> None:
    tool = {"name": HOSTILE, "description": HOSTILE, "inputSchema": {"type": "objekt"}}
    (tmp_path / "lists.json").write_text(json.dumps({"tools": [tool]}))
    for command in (["manifest"], ["doctor"], ["doctor", "--json"], ["check"], ["check", "--json"]):
        _, words = told(tmp_path, command, {}, {})
        assert shows_only_text(words), command
    options = {"log_level": "info", "audit": {"to": ["store", "stderr"], "calls": True}}
    with running_gateway({"p": server(PROBE, tools={"crash": {"direct_only": True}})}, options=options) as gateway:
        client = Legacy(gateway.url, http).open(name=HOSTILE)
        client.tool(HOSTILE)
        client.tool("\u202eecho")
    assert not any(character in gateway.stderr() for character in STEERING)
