"""`replicas`, `top` and `tail`: what operators watch and do, by a running gateway's REST interface."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.admin.formatting import amount, readable
from gateway.cli.sessions import JsonOption, KeyOption, UrlOption, complain, print_event, sessions_table
from gateway.cli.sources import Mistake, RestSource
from gateway.cli.terminal import Terminal
from gateway.observability.visible import as_json, visible_line

__all__ = ["app", "tail", "top"]

app = typer.Typer(help="Look at replicas, drain them, and admit them again.", no_args_is_help=True)
_out = Terminal()
_EVERY_S: Final = 2.0
_MOST: Final = 15

NameArgument = Annotated[str, typer.Argument(metavar="REPLICA", help="How its name begins, as `list` shows it.")]


def _run(url: str, key: str, work: Callable[[RestSource], Awaitable[None]]) -> None:
    async def running() -> None:
        if not url:
            raise Mistake("say which gateway with --url or MCP_GATEWAY_URL")
        async with RestSource(url, key).open() as source:
            await work(source)

    try:
        asyncio.run(running())
    except Mistake as error:
        raise complain(error) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _replicas_table(replicas: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for name in ("replica", "state", "address"):
        table.add_column(name, no_wrap=True)
    for name in ("sessions", "processes", "in flight", "calls/s", "failed/s", "p50", "p99", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in replicas:
        if one["silent"]:
            table.add_row(one["replica"], Text("silent", style="red"), one["address"])
            continue
        not_ready = Text("not ready", style="red")
        state = Text("draining") if one["draining"] else Text("ready") if one["ready"] else not_ready
        _, calls, failed, p50, p99 = one["history"][-1] if one["history"] else (0, 0, 0, 0.0, 0.0)
        counts = (one["sessions"], one["processes"], one["in_flight"], calls, failed)
        times = (readable(p50, "s"), readable(p99, "s"), amount(one["memory_bytes"]))
        name = f"{one['replica']}{' *' if one['here'] else ''}"
        table.add_row(name, state, one["address"] or "alone", *map(str, counts), *times)
    return table


@app.command("list")
def list_replicas(url: UrlOption = "", key: KeyOption = "", in_json: JsonOption = False) -> None:
    """List live replicas; * is the one that answers."""

    async def work(source: RestSource) -> None:
        found = await source.replicas()
        if in_json:
            typer.echo(as_json(found))
        else:
            _out.print(_replicas_table(found))

    _run(url, key, work)


@app.command("drain")
def drain(replica: NameArgument, url: UrlOption = "", key: KeyOption = "", in_json: JsonOption = False) -> None:
    """Have a replica hand its sessions to the others and be not ready."""

    async def work(source: RestSource) -> None:
        with Terminal(stderr=True).status(f"{replica} hands over its sessions"):
            answer = await source.ask("POST", f"replicas/{replica}/drain")
        typer.echo(as_json(answer) if in_json else visible_line(f"drained {answer['drained']}"))

    _run(url, key, work)


@app.command("admit")
def admit(replica: NameArgument, url: UrlOption = "", key: KeyOption = "", in_json: JsonOption = False) -> None:
    """Have a drained replica take sessions again."""

    async def work(source: RestSource) -> None:
        answer = await source.ask("DELETE", f"replicas/{replica}/drain")
        typer.echo(as_json(answer) if in_json else visible_line(f"admitted {answer['admitted']}"))

    _run(url, key, work)


def top(
    url: UrlOption = "",
    key: KeyOption = "",
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    in_json: JsonOption = False,
) -> None:
    """Replicas, and the sessions that fail and are busy, as they change."""

    async def look(source: RestSource) -> dict[str, Any]:
        replicas, failing, busy = await asyncio.gather(
            source.replicas(),
            source.page(query="", only="failing", limit=_MOST, after=""),
            source.page(query="", only="busy", limit=_MOST, after=""),
        )
        return {"replicas": replicas, "failing": failing["sessions"], "busy": busy["sessions"]}

    async def work(source: RestSource) -> None:
        seen = await look(source)
        if in_json:
            typer.echo(as_json(seen))
        elif once:
            _out.print(_screen(seen))
        else:
            with Live(_screen(seen), console=_out, auto_refresh=False, screen=True) as live:
                while True:
                    await asyncio.sleep(_EVERY_S)
                    live.update(_screen(await look(source)), refresh=True)

    _run(url, key, work)


def _screen(seen: dict[str, Any]) -> Group:
    parts: list[Any] = [_replicas_table(seen["replicas"])]
    for name in ("failing", "busy"):
        if seen[name]:
            parts += [Text(f"\n{name}", style="bold"), sessions_table(seen[name])]
    return Group(*parts)


def tail(
    url: UrlOption = "",
    key: KeyOption = "",
    session: Annotated[str, typer.Option(help="Of this session only: how its id begins, 8 characters.")] = "",
    in_json: JsonOption = False,
) -> None:
    """What happens to sessions on all replicas, as it happens; calls as well with gateway.audit.calls."""

    async def work(source: RestSource) -> None:
        async for event in source.follow(session):
            print_event(event, in_json=in_json)
        raise Mistake("the stream has ended: that gateway drains or stops; ask another")

    _run(url, key, work)
