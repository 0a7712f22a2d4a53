"""List, show and end sessions, in a store or at a running gateway (`sessions`)."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import msgspec.structs
import typer
from rich.table import Table
from rich.text import Text

from gateway.admin.formatting import took
from gateway.admin.query_types import FILTERS, SORTS, NoSuch, OperatorError, SessionFilter, SessionQuery
from gateway.admin.report_types import SESSION_STATES, ServerEnvironment, SessionEnvironment, SessionRow, TimelineRow
from gateway.admin.verbs import Operators
from gateway.cli.gateway_or_store import asks
from gateway.cli.options import JsonOption, Target
from gateway.cli.output import facts_table, none_line, print_event, sessions_table, totals_line
from gateway.cli.terminal_output import Terminal
from gateway.observability.escaped_text import as_json, visible_line
from session_store import AuditEvent

app = typer.Typer(help="List sessions and end them.", no_args_is_help=True, add_completion=False)
_out = Terminal()
_SEEN_BY_GATEWAYS = {"calls", "failed", "in_flight", "parked", "streams", "processes", "failures", "state"}
"""Fields of a session that are not in its record: only a running gateway knows them."""

_EMPTY_EVENT = {
    each.name: each.default for each in msgspec.structs.fields(AuditEvent) if each.default is not msgspec.NODEFAULT
}
"""Fields that an event may lack, with their defaults. They are added, so that scripts with `--json` find all fields."""

IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="[ID]", help="First characters of the session id, from `list`. Optional if there is only one session."
    ),
]
EndedArgument = Annotated[
    str,
    typer.Argument(metavar="[ID]", help="First characters of the session id, from `list`, unless filters are given."),
]
SHOWN_ENTRIES: Final = 50
"""The number of the newest timeline entries that are printed. `--json` has all stored entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Options that choose sessions to list or to end. With several of them, a session must have every given value."""

    principal: Annotated[str, typer.Option(help="All sessions of this principal.")] = ""
    client: Annotated[str, typer.Option(help="All sessions of clients with this name.")] = ""
    workspace: Annotated[str, typer.Option(help="All sessions in this workspace.")] = ""
    server: Annotated[str, typer.Option(help="All sessions that use this server.")] = ""
    state: Annotated[
        str, typer.Option(help=f"All sessions in this state: {', '.join(SESSION_STATES)}; needs --url.")
    ] = ""
    failing: Annotated[bool, typer.Option("--failing", help="All sessions with failed calls; needs --url.")] = False

    def session_filter(self) -> SessionFilter | None:
        """Return the filter for the given options; None if none is given. Raises `OperatorError` if a value is
        invalid."""
        values = {name: getattr(self, name) for name in FILTERS}
        return SessionFilter(**values) if any(values.values()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Options of `sessions list` for the page: which sessions, how many, and in which order."""

    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of rows.")] = 50
    after: Annotated[str, typer.Option(help="Continue after this id, which the previous page prints.")] = ""
    query: Annotated[
        str, typer.Option("--find", help="Text in id, principal, client, workspace, servers …; or a correlation id.")
    ] = ""
    only: Annotated[str, typer.Option(help="all, failing or busy; the last two need --url.")] = "all"
    sort: Annotated[str, typer.Option(help=f"{', '.join(SORTS)}.")] = ""

    @property
    def is_all(self) -> bool:
        """Return True if the list starts with the first session, and neither `query` nor `only` leaves sessions out."""
        return not self.query and not self.after and self.only == "all"


def _facts(operators: Operators, row: SessionRow, *without: str) -> dict[str, Any]:
    """Return the fields of a session by name, except those in `without`. If `operators` stands for a store without a
    gateway, also leave out the fields that only gateways know."""
    left_out = {*without, *(() if operators.sees_calls else _SEEN_BY_GATEWAYS)}
    return {name: value for name, value in msgspec.to_builtins(row).items() if name not in left_out}


@app.command("list")
@asks(Target)
async def list_sessions(operators: Operators, listing: Listing, which: Which, in_json: JsonOption = False) -> None:
    """List live sessions that have every given value, with totals of all of them."""
    page = await operators.sessions(SessionQuery(**asdict(listing), which=which.session_filter()))
    if in_json:
        without = () if operators.sees_calls else ("state_keys",)
        rows = [_facts(operators, row, *without) for row in page.sessions]
        totals = None if page.totals is None or not operators.sees_calls else msgspec.to_builtins(page.totals)
        found = {"sessions": rows, "after": page.after or None, "totals": totals, "is_reading": page.is_reading}
        typer.echo(as_json(found))
        return
    if page.sessions:
        _out.print(sessions_table(page.sessions, with_calls=operators.sees_calls))
    else:
        _out.print(none_line(page, is_all=listing.is_all and which.session_filter() is None))
    if page.totals is not None and operators.sees_calls:
        _out.print(totals_line(page))
    if page.after:
        _out.print(f"more: --after {page.after}")


@app.command("show")
@asks(Target)
async def show_session(operators: Operators, session_id: IdArgument = "", in_json: JsonOption = False) -> None:
    """Show one session: its record, the keys of its state, and its timeline, which is kept for a day after its end.
    With --url, also show its processes and failures, what its servers were given, and the reasons for what it sees."""
    facts, environment = await _live(operators, session_id)
    timeline = await operators.timeline(session_id)
    if facts is None:
        facts = msgspec.to_builtins(timeline.head)
    if in_json:
        more = {} if environment is None else {"environment": msgspec.to_builtins(environment)}
        typer.echo(as_json({**facts, **more, "timeline": msgspec.to_builtins(timeline.entries)}))
        return
    _out.print(facts_table(facts))
    if environment is not None:
        _out.print("\n".join(("", *environment_lines(environment))))
    _out.print("\n".join(("", "timeline", *timeline_lines(timeline.entries))))
    _out.print(timeline_table(timeline.entries))


async def _live(operators: Operators, prefix: str) -> tuple[dict[str, Any] | None, SessionEnvironment | None]:
    """Return the facts of the live session whose id begins with `prefix`, and its environment. The environment is None
    if a store answers without a gateway. Both are None if no such session is live."""
    try:
        facts = _facts(operators, await operators.session(prefix))
        return facts, await operators.environment(prefix) if operators.sees_calls else None
    except NoSuch:
        return None, None


@app.command("end")
@asks(Target)
async def end_session(
    operators: Operators, which: Which, session_id: EndedArgument = "", in_json: JsonOption = False
) -> None:
    """End one session at once, on every replica; or all sessions that have every given value."""
    chosen = which.session_filter()
    if chosen is not None:
        if session_id:
            raise OperatorError("give either the ID of one session, or --principal, --client and the like")
        count = await operators.end_all(chosen)
        typer.echo(json.dumps({"ended": count}) if in_json else f"ended {count} session{'' if count == 1 else 's'}")
        return
    if not session_id:  # never the only one by itself: the variable of a script may be unset
        raise OperatorError("give the ID of the session, or --principal, --client and the like")
    ended = await operators.end(session_id)
    typer.echo(json.dumps({"ended": ended}) if in_json else f"ended {ended}")


@app.command("events")
@asks(Target)
async def events(
    operators: Operators,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    in_json: JsonOption = False,
) -> None:
    """List recent session events, newest first."""
    for event in await operators.events(limit):
        print_event(_EMPTY_EVENT | event, in_json=in_json)


def environment_lines(found: SessionEnvironment) -> Iterator[str]:
    """Yield lines about a session: the reasons for what the session sees; then for each of its servers the folders, the
    sandbox and the variables."""
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
    """Yield the line to print above a timeline's table: that the timeline is empty, or that only its newest entries are
    shown. Yield nothing if all are shown."""
    if not entries:
        yield "nothing has happened in it yet"
    elif len(entries) > SHOWN_ENTRIES:
        yield f"the newest {SHOWN_ENTRIES} of {len(entries)} entries; --json has all"


def timeline_table(entries: Sequence[TimelineRow], now: float | None = None) -> Table:
    """Return a table of the newest `SHOWN_ENTRIES` timeline entries, in order of time. Times are local; entries of
    another day than `now` (None: the present) have a date."""
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
