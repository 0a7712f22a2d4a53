"""What `sessions show` prints of one session for people: its environment, why it sees what it does, its timeline."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from gateway.admin.formatting import took
from gateway.admin.reports import ServerEnvironment, SessionEnvironment, TimelineRow
from gateway.observability.visible import visible_line

__all__ = ["SHOWN_ENTRIES", "environment_lines", "timeline_lines", "timeline_table"]

SHOWN_ENTRIES: Final = 50
"""The newest entries of a timeline are printed. `--json` has all that are kept."""


def environment_lines(found: SessionEnvironment) -> Iterator[str]:
    """Why the session sees what it sees, and what each of its servers was given."""
    yield from (visible_line(sentence) for sentence in found.why)
    for server in found.servers:
        yield ""
        yield visible_line(f"server {server.server}")
        yield from (f"  {visible_line(line)}" for line in _of_server(server))
    if found.more_servers:
        yield f"and {found.more_servers} more servers"


def _of_server(server: ServerEnvironment) -> Iterator[str]:
    yield from server.why
    for one in server.hidden_tools:
        yield f"{one.count} hidden, because {one.reason}: {', '.join(one.names)}"
    if server.kind == "command" and not server.hidden:
        yield f"working folder {server.cwd}"
        yield f"temporary folder {server.temporary}"
        yield from (line.strip() for line in server.sandbox[:1])
    for variable in (*server.variables, *server.headers):
        value = "" if variable.value is None else f" = {variable.value}"
        yield f"{variable.name}{value}  ({variable.origin}: {variable.where})"


def timeline_lines(entries: Sequence[TimelineRow]) -> Iterator[str]:
    """What stands above the table of a timeline."""
    if not entries:
        yield "nothing has happened in it yet"
    elif len(entries) > SHOWN_ENTRIES:
        yield f"the newest {SHOWN_ENTRIES} of {len(entries)} entries; --json has all"


def timeline_table(entries: Sequence[TimelineRow], now: float | None = None) -> Table:
    """One line for each of the newest entries, in order of time. Times are local; of another day with the date."""
    table = Table(box=None, show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    today = time.localtime(now)[:3]
    for entry in entries[-SHOWN_ENTRIES:]:
        at = time.localtime(entry.at)
        each = took(entry.took_s / entry.count) if entry.took_s else ""
        many = f", {entry.count:,} times" if entry.count > 1 else ""
        cells = (
            time.strftime("%H:%M:%S" if at[:3] == today else "%Y-%m-%d %H:%M:%S", at),
            entry.kind,
            entry.server,
            f"{entry.name}{many}",
            each,
        )
        outcome = Text(visible_line(entry.outcome), style="red" if entry.has_failed else "")
        table.add_row(*map(visible_line, cells), outcome, visible_line(entry.why))
    return table
