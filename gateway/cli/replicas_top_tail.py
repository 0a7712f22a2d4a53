"""Define the commands `replicas`, `top` and `tail`, which ask a running gateway."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from gateway.admin.query_types import OperatorError, SessionQuery
from gateway.admin.report_types import ReplicaReport, SessionRow
from gateway.admin.verbs import Operators
from gateway.cli.gateway_or_store import asks
from gateway.cli.options import AtGateway, JsonOption
from gateway.cli.output import print_event, replicas_table, sessions_table
from gateway.cli.terminal_output import Terminal
from gateway.observability.escaped_text import as_json, visible_line

app = typer.Typer(help="List replicas, drain them and admit them again.", no_args_is_help=True, add_completion=False)
_out = Terminal()
_EVERY_S: Final = 2.0
_MOST: Final = 15

NameArgument = Annotated[
    str, typer.Argument(metavar="REPLICA", help="The replica's name, or its first characters, from `list`.")
]


@app.command("list")
@asks(AtGateway)
async def list_replicas(operators: Operators, in_json: JsonOption = False) -> None:
    """List live replicas. * marks the replica that answered this request."""
    found = await operators.replicas()
    if in_json:
        typer.echo(as_json(msgspec.to_builtins(found)))
    else:
        _out.print(replicas_table(found))


@app.command("drain")
@asks(AtGateway)
async def drain(operators: Operators, replica: NameArgument, in_json: JsonOption = False) -> None:
    """Drain a replica: it becomes not ready and hands its sessions to the other replicas."""
    with Terminal(stderr=True).status(f"{replica} hands over its sessions"):
        name = await operators.drain(replica)
    typer.echo(as_json({"drained": name}) if in_json else visible_line(f"drained {name}"))


@app.command("admit")
@asks(AtGateway)
async def admit(operators: Operators, replica: NameArgument, in_json: JsonOption = False) -> None:
    """Let a drained replica accept sessions again."""
    name = await operators.admit(replica)
    typer.echo(as_json({"admitted": name}) if in_json else visible_line(f"admitted {name}"))


@asks(AtGateway)
async def reload(operators: Operators, in_json: JsonOption = False) -> None:
    """Have all replicas of a running gateway load their configuration again. Exit status 1 if one of them refuses it:
    nothing has changed there."""
    found = await operators.reload()
    if in_json:
        typer.echo(as_json(msgspec.to_builtins(found)))
    else:
        for one in found:
            for line in (one.difference or one.fault or "no answer").splitlines():
                typer.echo(visible_line(f"{one.replica}: {line}"))
    if not all(one.difference for one in found):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Seen:
    replicas: list[ReplicaReport]
    failing: list[SessionRow]
    busy: list[SessionRow]

    def screen(self) -> Group:
        parts: list[Any] = [replicas_table(self.replicas)]
        for name, rows in (("failing", self.failing), ("busy", self.busy)):
            if rows:
                parts += [Text(f"\n{name}", style="bold"), sessions_table(rows, with_calls=True)]
        return Group(*parts)


@asks(AtGateway, is_endless=True)
async def top(
    operators: Operators,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    in_json: JsonOption = False,
) -> None:
    """Show replicas, failing sessions and busy sessions, updated continuously."""

    async def look(operators: Operators) -> _Seen:
        replicas, failing, busy = await asyncio.gather(
            operators.replicas(),
            operators.sessions(SessionQuery(only="failing", limit=_MOST)),
            operators.sessions(SessionQuery(only="busy", limit=_MOST)),
        )
        return _Seen(replicas, failing.sessions, busy.sessions)

    seen = await look(operators)
    if in_json:
        typer.echo(as_json(msgspec.to_builtins(seen)))
    elif once:
        _out.print(seen.screen())
    else:
        with Live(seen.screen(), console=_out, auto_refresh=False, screen=True) as live:
            while True:
                await asyncio.sleep(_EVERY_S)
                live.update((await look(operators)).screen(), refresh=True)


@asks(AtGateway, is_endless=True)
async def tail(
    operators: Operators,
    session: Annotated[str, typer.Option(help="Only this session: the first 8 characters of its id.")] = "",
    in_json: JsonOption = False,
) -> None:
    """Follow the session events of all replicas. With gateway.audit.calls, tool calls are included."""
    async for event in operators.follow(session):
        print_event(event, in_json=in_json)
    raise OperatorError(
        "the event stream has ended, because that gateway drains or stops: give --url of another gateway"
    )
