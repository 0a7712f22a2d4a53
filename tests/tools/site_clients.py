"""Makes pages of the site from what tests run: one for each client, and the table of published servers.

A library's page has the program that the tests run. A host's page has what `mcp-session-gateway connect` prints.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config.hosts.client_snippets import CREDENTIAL_VARIABLE, PLACEHOLDER, Snippet, snippets
from tests.clients.client_table import MODES, PROGRAMS, ROWS, Row
from tests.published.servers import SERVERS, Site

_LANGUAGES: Final = {".py": "python", ".mjs": "js"}
_OF_THE_TEST: Final = re.compile(r"^(from driver import .*|main\(.*\))\n", re.MULTILINE)


_URL: Final = "http://127.0.0.1:8080/mcp"


def client_pages() -> Iterator[tuple[str, str, str]]:
    """Path, title and text of each page."""
    for plain, keyed in zip(snippets(_URL), snippets(_URL, needs_token=True, session_key="KEY"), strict=True):
        if plain.file is not None:
            yield f"clients/{plain.client}.md", plain.title, "\n".join(_host(plain, keyed))
    yield from _libraries()


def _host(plain: Snippet, keyed: Snippet) -> Iterator[str]:
    """The page of a host: its shortest way, its file, and both with a credential and a session key."""
    assert plain.file is not None and keyed.file is not None
    yield f"# {plain.title}\n"
    yield f"`mcp-session-gateway connect {plain.client}` prints this for your gateway:\n"
    yield f"```{plain.language}\n{plain.text}```\n"
    if plain.text != plain.file.text:
        yield f"The same as an entry of `{plain.file.path}`:\n"
        yield f"```{plain.file.language}\n{plain.file.text}```\n"
    yield "## With a credential and a lasting session\n"
    if PLACEHOLDER in keyed.file.text:
        yield f"Write your API key or access token in place of `{PLACEHOLDER}`. KEY is a"
    else:
        yield f"{plain.title} reads the API key or access token from the variable `{CREDENTIAL_VARIABLE}`. KEY is a"
    yield "[session key](../sessions.md#session-keys), of which each agent has its own. In the entry:\n"
    yield f"```{keyed.file.language}\n{keyed.file.text}```\n"
    yield f"The forms are those of [{plain.title}'s documentation]({plain.documentation}).\n"


def _libraries() -> Iterator[tuple[str, str, str]]:
    """What the clients of one program do, and the program that was run."""
    programs: dict[str, list[Row]] = {}
    for row in ROWS.values():
        programs.setdefault(row.program, []).append(row)
    for program, rows in programs.items():
        title = re.sub(r" \d+(\.\d+)+.*", "", rows[0].name.partition(",")[0])
        title = title if all(title in row.name for row in rows) else rows[0].name.partition(" SDK")[0] + " SDK"
        title += " 2" if program == "python_sdk_2.py" else " 1" if program == "python_sdk_1.py" else ""
        yield f"clients/{_slug(title)}.md", title, "\n".join(_page(title, program, rows))


def _page(title: str, program: str, rows: list[Row]) -> Iterator[str]:
    yield f"# {title}\n"
    yield "The line that gives each client a lasting session of its own, where `headers` is"
    yield '`{"MCP-Gateway-Session-Key": KEY}`, and KEY is `openssl rand -hex 16`:\n'
    for line in dict.fromkeys(row.line for row in rows):
        yield f"```\n{line}\n```\n"
    yield "What clients get that start at the same time ([what the words mean](../clients.md)):\n"
    yield f"| client | {' | '.join(MODES)} |\n|---|---|---|---|"
    for row in rows:
        yield f"| {row.name} | {' | '.join(row.expected)} |"
    yield "\nThe program that the tests run, as they run it:\n"
    path = PROGRAMS / program
    text = _OF_THE_TEST.sub("", path.read_text(encoding="utf-8")).strip()
    yield f"```{_LANGUAGES[path.suffix]}\n{text}\n```\n"


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def published_servers() -> str:
    """The table of servers, as Markdown."""
    site = Site(Path("/srv/data"), "http://127.0.0.1:8000/page")
    lines = ["| server | command | more than the profile grants |", "|---|---|---|"]
    for server in SERVERS:
        words = shlex.join((*server.command, *server.args(site)))
        more = ", ".join(f"`{json.dumps(name)}: {json.dumps(value)}`" for name, value in server.sandbox(site).items())
        lines.append(f"| {server.name} | `{words.replace('|', chr(92) + '|')}` | {more or 'nothing'} |")
    return "\n".join(lines)
