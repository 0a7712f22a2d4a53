"""`mcp-session-gateway sessions`: look at sessions and end them, in a store or at a running gateway."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gateway.admin.formatting import span
from gateway.admin.operations import ONLY
from gateway.cli.sources import Mistake, Source, opened
from gateway.cli.terminal import Terminal
from gateway.observability.visible import as_json, visible_line
from session_store import StoreError

__all__ = ["JsonOption", "KeyOption", "UrlOption", "app", "complain", "print_event", "sessions_table"]

app = typer.Typer(help="Look at sessions, and end them.", no_args_is_help=True)


_out = Terminal()
_err = Terminal(stderr=True)

StoreOption = Annotated[
    str, typer.Option("--store", envvar="MCP_GATEWAY_STORE", help="The store's URL, as the gateway has it.")
]
UrlOption = Annotated[
    str,
    typer.Option("--url", envvar="MCP_GATEWAY_URL", help="A running gateway, or its operators' listener."),
]
KeyOption = Annotated[
    str, typer.Option("--key", envvar="MCP_GATEWAY_ADMIN_KEY", help="An operator's key; better given as a variable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="[ID]", help="How its id begins, as `list` shows it; not needed if there is but one.")
]


def complain(error: Exception) -> typer.Exit:
    """Tell the person at the terminal what is wrong."""
    for line in str(error).splitlines():
        _err.complain("error", line)
    return typer.Exit(2)


def _run(store: str, url: str, key: str, work: Callable[[Source], Awaitable[None]]) -> None:
    async def running() -> None:
        async with opened(store, url, key) as source:
            await work(source)

    try:
        asyncio.run(running())
    except (Mistake, StoreError, ValueError) as error:
        raise complain(error) from None


def sessions_table(rows: list[dict[str, Any]]) -> Table:
    """Sessions for people."""
    table = Table(box=None)
    table.add_column("session", no_wrap=True, min_width=8)
    for name in ("principal", "endpoint", "era", "client"):
        table.add_column(name, no_wrap=True)
    for name in ("age", "idle", "ends in"):
        table.add_column(name, no_wrap=True, justify="right")
    counted = bool(rows) and "calls" in rows[0]
    if counted:
        for name in ("calls", "failed"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("last failure", no_wrap=True)
    for row in rows:
        cells: list[str | Text] = [row[name] for name in ("session", "principal", "endpoint", "era", "client")]
        cells += [span(row[name]) for name in ("age_s", "idle_s", "expires_in_s")]
        if counted:
            failed = Text(str(row["failed"]), style="red") if row["failed"] else "0"
            last = [f"{one['name']}: {one['why'] or one['outcome']}" for one in row["failures"][:1]]
            cells += [str(row["calls"]), failed, "".join(last)]
        table.add_row(*cells)
    return table


@app.command("list")
def list_sessions(
    store: StoreOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many to show.")] = 50,
    after: Annotated[str, typer.Option(help="Begin behind this one: the last of the page before.")] = "",
    query: Annotated[str, typer.Option("--find", help="Words in id, principal, client, workspace, servers …")] = "",
    only: Annotated[str, typer.Option(help="all, failing or busy; the last two with --url.")] = "all",
    in_json: JsonOption = False,
) -> None:
    """List live sessions, in order of id."""

    async def work(source: Source) -> None:
        if only not in ONLY:
            raise Mistake(f"--only: must be one of {', '.join(ONLY)}")
        page = await source.page(query=query, only=ONLY[only], limit=limit, after=after)
        if in_json:
            typer.echo(as_json(page | {"after": page["after"] or None}))
            return
        _out.print(sessions_table(page["sessions"]))
        if page["after"]:
            _out.print(f"more: --after {page['after']}")

    _run(store, url, key, work)


@app.command("show")
def show_session(
    store: StoreOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    session_id: IdArgument = "",
    in_json: JsonOption = False,
) -> None:
    """Show one session: its record, the keys of its state, and with --url its processes and failures."""

    async def work(source: Source) -> None:
        facts = await source.show(session_id)
        if in_json:
            typer.echo(as_json(facts))
            return
        table = Table(box=None, show_header=False)
        for name, value in facts.items():
            table.add_row(name, as_json(value) if isinstance(value, list | dict) else str(value))
        _out.print(table)

    _run(store, url, key, work)


@app.command("end")
def end_session(
    store: StoreOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    session_id: IdArgument = "",
    in_json: JsonOption = False,
) -> None:
    """End one session at once, on every replica."""

    async def work(source: Source) -> None:
        ended = await source.end(session_id)
        typer.echo(json.dumps({"ended": ended}) if in_json else f"ended {ended}")

    _run(store, url, key, work)


@app.command("events")
def events(
    store: StoreOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many to show.")] = 50,
    in_json: JsonOption = False,
) -> None:
    """What happened to sessions lately, newest first."""

    async def work(source: Source) -> None:
        for event in await source.events(limit):
            print_event(event, in_json=in_json)

    _run(store, url, key, work)


def print_event(event: dict[str, Any], *, in_json: bool) -> None:
    """One line."""
    if in_json:
        typer.echo(as_json(event))
        return
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event["at"]))
    took = f"{event['took_s'] * 1_000:.1f} ms" if event.get("outcome") else ""
    facts = [event.get(name, "") for name in ("session", "principal", "endpoint", "tool", "outcome")]
    words = (at, event["event"], *facts, took, event.get("reason", ""))
    _out.print("  ".join(visible_line(word) for word in words if word))
