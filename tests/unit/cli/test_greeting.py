"""The greeting as text: one screen, and nothing in it that breaks a URL."""

import dataclasses
import io

from rich.console import Console

from gateway.cli.greeting import StatusLine, progress_line, rendered
from gateway.serving.greeting import Greeting, ServerLine
from tests.requirements import requirement
from tests.support.hostile_text import HOSTILE, shows_only_text


def line(name: str, **more: object) -> ServerLine:
    facts = {"state": "ok", "tools": 3, "about": "2026-07-28", "sandbox": "standard"} | more
    return ServerLine(name=name, **facts)  # type: ignore[arg-type]


GREETING = Greeting(
    url="http://127.0.0.1:8080/mcp",
    scope="",
    console="http://127.0.0.1:8080/admin/sign-in/" + "x" * 43,
    has_link=True,
    is_announced=True,
    servers=(line("files", tools=1), line("git", state="failing", tools=None, about=HOSTILE)),
    store="in memory",
    store_fault="",
    callers="everyone",
    needs_token=False,
    gaps=0,
)


def text_of(greeting: Greeting) -> str:
    screen = io.StringIO()
    Console(file=screen, width=60, soft_wrap=True).print(rendered(greeting, 1.24))
    return screen.getvalue()


@requirement("first.greeting")
def test_the_greeting_names_what_is_served_and_where() -> None:
    text = text_of(GREETING)
    assert "ready in 1.2 s" in text and f" {GREETING.url}\n" in text and f" {GREETING.console}\n" in text
    assert "✓ files  1 tool " in text and "✗ git" in text and "sandbox standard" in text
    assert f"claude mcp add --transport http gateway {GREETING.url}\n" in text
    assert "Operate   mcp-session-gateway sessions list" in text and shows_only_text(text)


@requirement("first.greeting")
def test_the_greeting_fits_on_a_screen_and_says_what_needs_care() -> None:
    many = dataclasses.replace(
        GREETING, servers=tuple(line(f"s{n}") for n in range(200)), gaps=2, console="", is_announced=False
    )
    text = text_of(many)
    assert len(text.splitlines()) <= 25 and "and 188 more" in text and "for 2 of the servers" in text
    assert "Console" not in text and "Operate" not in text and "sign" not in text
    secured = text_of(dataclasses.replace(GREETING, needs_token=True))
    assert "Authorization: Bearer $MCP_TOKEN" in secured


@requirement("first.store")
def test_a_gateway_whose_store_is_away_is_not_called_ready() -> None:
    text = text_of(dataclasses.replace(GREETING, store="redis://…@db/0", store_fault="connection refused"))
    assert "ready in" not in text and "waits for its store" in text
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
