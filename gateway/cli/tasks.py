"""List, show and cancel tasks, in a store or at a running gateway (`tasks`)."""

from dataclasses import asdict, dataclass
from typing import Annotated

import msgspec
import typer

from gateway.admin.query_types import TASK_STATUSES, TaskQuery
from gateway.admin.verbs import Operators
from gateway.cli.gateway_or_store import asks
from gateway.cli.options import JsonOption, Target
from gateway.cli.output import facts_table, tasks_table
from gateway.cli.terminal_output import Terminal
from gateway.observability.escaped_text import as_json

app = typer.Typer(
    help="List and cancel tasks: calls that go on after their clients have left.",
    no_args_is_help=True,
    add_completion=False,
)
_out = Terminal()

IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="First characters of the task's id, from `list`; or the id that its client has."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskListing:
    """Options of `tasks list` for the page: which tasks, and how many."""

    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of rows.")] = 50
    after: Annotated[str, typer.Option(help="Continue after this task id, the last one of the previous page.")] = ""
    query: Annotated[str, typer.Option("--find", help="Text to find in id, session, principal, server, tool …")] = ""
    status: Annotated[str, typer.Option(help=f"One of {', '.join(TASK_STATUSES)}.")] = ""


@app.command("list")
@asks(Target)
async def list_tasks(operators: Operators, listing: TaskListing, in_json: JsonOption = False) -> None:
    """List tasks, newest first. Tasks that are over are listed until they expire."""
    status = listing.status.replace(" ", "_")  # as `list` prints it
    page = await operators.tasks(TaskQuery(**asdict(listing) | {"status": status}))
    if in_json:
        typer.echo(as_json({"tasks": msgspec.to_builtins(page.tasks), "after": page.after or None}))
        return
    _out.print(tasks_table(page.tasks))
    if page.after:
        _out.print(f"more: --after {page.after}")


@app.command("show")
@asks(Target)
async def show_task(operators: Operators, task_id: IdArgument, in_json: JsonOption = False) -> None:
    """Show one task: who made it, what it calls, and its outcome."""
    facts = msgspec.to_builtins(await operators.task(task_id))
    if in_json:
        typer.echo(as_json(facts))
    else:
        _out.print(facts_table(facts))


@app.command("cancel")
@asks(Target)
async def cancel_task(operators: Operators, task_id: IdArgument, in_json: JsonOption = False) -> None:
    """Cancel the call of a task, on whichever replica runs it. Needs --url."""
    cancelled = await operators.cancel_task(task_id)
    typer.echo(as_json({"cancelled": cancelled}) if in_json else f"cancelled {cancelled}")
