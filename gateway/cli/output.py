"""Format what commands print for people: tables of sessions and replicas, and lines of events."""

import time
from collections.abc import Callable
from typing import Any, Final

import typer
from rich.table import Table
from rich.text import Text

from gateway.admin.formatting import amount, clock, readable, span
from gateway.admin.query_types import Page
from gateway.admin.report_types import ReplicaReport, SessionRow, SessionTotals, TaskRow
from gateway.cli.terminal_output import Terminal
from gateway.context.consented_tokens import Connection
from gateway.observability.escaped_text import as_json, visible, visible_line

_out = Terminal()


def sessions_table(rows: list[SessionRow], *, with_calls: bool) -> Table:
    """Return a table of sessions. `with_calls`: with columns for their calls, which only a running gateway knows."""
    table = Table(box=None)
    table.add_column("session", no_wrap=True, min_width=8)
    for name in ("principal", "endpoint", "era", "client"):
        table.add_column(name, no_wrap=True)
    for name in ("age", "idle", "ends in"):
        table.add_column(name, no_wrap=True, justify="right")
    has_calls = bool(rows) and with_calls
    if has_calls:
        for name in ("requests", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("last failure")
    for row in rows:
        cells: list[str | Text] = [row.session, row.principal, row.endpoint, row.era, row.client]
        cells += [span(seconds) for seconds in (row.age_s, row.idle_s, row.expires_in_s)]
        if has_calls:
            failed = Text(str(row.failed), style="red") if row.failed else "0"
            last = [f"{failure.name}: {failure.why or failure.outcome}" for failure in row.failures[:1]]
            # The record has counts if a replica has released the session: not if its replica was killed.
            is_unknown = row.state == "detached" and not row.calls
            counts: tuple[str | Text, ...] = ("?", "?") if is_unknown else (str(row.calls), failed)
            cells += [*counts, _cut("".join(last))]
        table.add_row(*cells)
    return table


def none_line(page: Page, *, is_all: bool) -> str:
    """Return the line to print in place of an empty list of sessions. `is_all`: the list has no filter, and begins with
    the first session."""
    if page.is_reading or page.unanswered:
        return "no session has been found yet"
    if is_all:
        return "no session is live: connect a client, and the session that it opens is listed here"
    return "no live session matches: leave out a filter, or list all"


def totals_line(page: Page) -> str:
    """Return a line with the totals of all sessions that match the filter, also of those on other pages. It has a note
    if replicas did not answer or sessions are still being read."""
    totals = page.totals or SessionTotals()
    states = [f"{count:,} {state}" for state, count in sorted(totals.states.items())]
    counts = [*states, f"{totals.failing:,} with failures", f"requests {totals.calls:,}", f"failed {totals.failed:,}"]
    line = f"{totals.sessions:,} session{'' if totals.sessions == 1 else 's'}: {', '.join(counts)}"
    if page.unanswered:
        line += f"; {page.unanswered} replica{'' if page.unanswered == 1 else 's'} did not answer"
    return line + ("; still reading those that no replica serves: list again in a while" if page.is_reading else "")


def _cut(text: str) -> Text:
    """Return the text for a table's last column. It is cut at the edge of the terminal and not wrapped, because rich
    narrows columns that may wrap before others."""
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


def tasks_table(rows: list[TaskRow]) -> Table:
    table = Table(box=None)
    for name in ("task", "session", "principal", "server", "tool", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("age", "last change", "kept for"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("message")
    for row in rows:
        status = Text(row.outcome, style="red" if row.has_failed else "")
        times = [span(seconds) for seconds in (row.age_s, row.idle_s, row.expires_in_s)]
        facts = (row.task, row.session, row.principal, row.server, row.tool)
        table.add_row(*facts, status, *times, _cut(row.error or row.message))
    return table


def credentials_table(rows: list[Connection]) -> Table:
    """Return a table with a row for each account that a principal has connected by consent to a server."""
    table = Table(box=None)
    for name in ("principal", "secret", "server", "connected for", "token"):
        table.add_column(name, no_wrap=name != "server", overflow="fold")
    for row in rows:
        left = row.expires - time.time()
        state = "is refreshed" if row.is_refreshed else f"expires in {span(left)}" if left > 0 else "has expired"
        table.add_row(row.principal, row.secret, row.resource, span(time.time() - row.since), state)
    return table


def facts_table(facts: dict[str, Any]) -> Table:
    """Return a table with a row for each name and value. In a value that is an object, each key has a line; in a list
    of objects, each object has a line."""
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        unitless = _unitless(name)
        is_another = unitless != name and unitless in facts  # `state_bytes` beside `state`
        table.add_row(name.replace("_", " ") if is_another else unitless, _readable(name, value))
    return table


def _readable(name: str, value: Any) -> str:
    """Return a value as text for people: times and sizes with units, lists and objects without brackets. The ending of
    `name` gives the unit (`_UNITS`)."""
    if isinstance(value, dict):
        return "\n".join(f"{_unitless(key)}: {_readable(key, inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple) and any(isinstance(inner, dict) for inner in value):
        return "\n".join(_readable(name, inner).replace("\n", "  ") for inner in value)
    if isinstance(value, list | tuple):
        return ", ".join(_readable(name, inner) for inner in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        for ending, shown in _UNITS.items():
            if f"_{name}".endswith(ending):
                return shown(value)
    return "" if value is None else str(value)


def _unitless(name: str) -> str:
    return next((name.removesuffix(ending) for ending in _UNITS if name.endswith(ending)), name).replace("_", " ")


_UNITS: Final[dict[str, Callable[[float], str]]] = {"_s": span, "_bytes": amount, "_at": clock}
"""The function that formats a value, by the ending of the value's name."""


def replicas_table(replicas: list[ReplicaReport]) -> Table:
    """Return a table of replicas. `*` marks the replica that answers the request."""
    table = Table(box=None)
    for name in ("replica", "state", "address"):
        table.add_column(name, no_wrap=True)
    for name in ("sessions", "processes", "in flight", "calls/s", "failed/s", "p50", "p99", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in replicas:
        if one.silent:
            table.add_row(one.replica, Text("no answer", style="red"), one.address)
            continue
        state = Text("draining") if one.draining else Text("ready") if one.ready else Text("not ready", style="red")
        if one.outdated:
            state.append(", older configuration", style="red")
        last = one.history[-1] if one.history else None
        calls, failed = (0, 0) if last is None else (last.calls, last.failed)
        p50, p99 = (0.0, 0.0) if last is None else (last.p50_s, last.p99_s)
        counts = (one.sessions, one.processes, one.in_flight, calls, failed)
        times = (readable(p50, "s"), readable(p99, "s"), amount(one.memory_bytes))
        name = f"{one.replica}{' *' if one.here else ''}"
        table.add_row(name, state, one.address or "alone", *map(str, counts), *times)
    return table


def print_event(event: dict[str, Any], *, in_json: bool) -> None:
    """Print an audit event on one line: as JSON if `in_json`, otherwise as text for people."""
    if in_json:
        typer.echo(as_json(event))
        return
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event["at"]))
    took = f"{event.get('took_s', 0.0) * 1_000:.1f} ms" if event["event"] == "called" else ""
    facts = [event.get(name, "") for name in ("session", "principal", "endpoint", "tool", "outcome")]
    parts = (at, event["event"], *facts, took, event.get("reason", ""), event.get("why", ""))
    _out.print("  ".join(visible_line(part) for part in parts if part))
