"""`mcp-session-gateway sessions`: look at the sessions of a store, and end them. Works beside a running gateway."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from session_store import AuditEvent, Backend, Session, StoreError, backend_for
from session_store.connect import shown
from session_store.session import redact

__all__ = ["app"]

app = typer.Typer(help="Look at the sessions of a store, and end them.", no_args_is_help=True)
_out = Console(soft_wrap=True)
_err = Console(stderr=True, soft_wrap=True)

SHORTEST_PREFIX: Final = 4

StoreOption = Annotated[
    str, typer.Option("--store", envvar="MCP_GATEWAY_STORE", help="The store's URL, as the gateway has it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="[ID]", help="How its id begins, as `list` shows it; not needed if there is but one.")
]


class _Mistake(Exception):
    """What to tell the person at the terminal."""


def _run(store: str, work: Callable[[Backend], Awaitable[None]]) -> None:
    async def running() -> None:
        async with _opened(store) as backend:
            await work(backend)

    try:
        asyncio.run(running())
    except (_Mistake, StoreError, ValueError) as error:
        for line in str(error).splitlines():
            _err.print(f"[bold red]error[/] {line}", highlight=False)
        raise typer.Exit(2) from None


@asynccontextmanager
async def _opened(store: str) -> Any:
    if store == "memory://":
        raise _Mistake(
            "memory:// keeps its sessions inside the gateway's process, where no other can see them; "
            "give the URL of a sqlite or redis store"
        )
    backend = backend_for(store, exclusive=False)
    if hasattr(backend, "path") and not backend.path.exists():
        raise _Mistake(f"{shown(store)}: there is no such file")
    await backend.open()
    try:
        await backend.ping()
        yield backend
    finally:
        await backend.close()


async def _find(backend: Backend, prefix: str) -> Session:
    """The one session meant. Never a guess."""
    if prefix and len(prefix) < SHORTEST_PREFIX:
        raise _Mistake(f"give at least {SHORTEST_PREFIX} characters of the id")
    exact = await backend.sessions.peek(prefix) if prefix else None
    if exact is not None:
        return exact
    found = [s for s in await backend.sessions.page(after=prefix, limit=11) if s.id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    what = f"begins with {prefix}" if prefix else "is live"
    if not found:
        raise _Mistake(f"no session {what}")
    listed = "\n".join(f"  {redact(s.id)}  {s.principal}  {s.client.name or '?'}" for s in found[:10])
    more = "\n  …" if len(found) > 10 else ""
    raise _Mistake(f"more than one session {what}; say which:\n{listed}{more}")


def _facts(session: Session) -> dict[str, Any]:
    now = time.time()
    return {
        "session": redact(session.id),
        "principal": str(session.principal),
        "endpoint": session.endpoint,
        "era": session.era,
        "client": f"{session.client.name} {session.client.version}".strip(),
        "workspace": session.context.workspace,
        "trust": session.context.trust,
        "age_s": round(now - session.created_at, 1),
        "idle_s": round(now - session.used_at, 1),
        "expires_in_s": round(session.expires_at - now, 1),
        "upstreams": list(session.links),
        "metadata": dict(session.metadata),
    }


@app.command("list")
def list_sessions(
    store: StoreOption,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many to show.")] = 50,
    after: Annotated[str, typer.Option(help="Begin behind this one: the last of the page before.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List live sessions, in order of id."""

    async def work(backend: Backend) -> None:
        # "~" stands behind every character of an id: the page begins behind all that start like that.
        page = await backend.sessions.page(after=f"{after}~" if after else "", limit=limit + 1)
        more = redact(page[limit - 1].id) if len(page) > limit else None
        rows = [_facts(session) for session in page[:limit]]
        if as_json:
            typer.echo(json.dumps({"sessions": rows, "after": more}, ensure_ascii=False))
            return
        table = Table(*("session", "principal", "endpoint", "era", "client", "age", "idle", "ends in"), box=None)
        for row in rows:
            times = (f"{row[name]:.0f} s" for name in ("age_s", "idle_s", "expires_in_s"))
            table.add_row(row["session"], row["principal"], row["endpoint"], row["era"], row["client"], *times)
        _out.print(table)
        if more is not None:
            _out.print(f"more: --after {more}", highlight=False)

    _run(store, work)


@app.command("show")
def show_session(store: StoreOption, session_id: IdArgument = "", as_json: JsonOption = False) -> None:
    """Show one session: its record, and the keys of its state."""

    async def work(backend: Backend) -> None:
        session = await _find(backend, session_id)
        facts = _facts(session) | {"state_keys": await backend.state.keys(session.id)}
        if as_json:
            typer.echo(json.dumps(facts, ensure_ascii=False))
            return
        table = Table(box=None, show_header=False)
        for name, value in facts.items():
            table.add_row(name, json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value))
        _out.print(table)

    _run(store, work)


@app.command("end")
def end_session(store: StoreOption, session_id: IdArgument = "") -> None:
    """End one session at once, on every replica."""
    from gateway.sessions import ENDED

    async def work(backend: Backend) -> None:
        session = await _find(backend, session_id)
        if not await backend.sessions.end(session.id):
            raise _Mistake("it ended a moment ago")
        await backend.bus.publish(ENDED, session.id.encode())
        told = AuditEvent(
            at=time.time(),
            event="ended",
            session=redact(session.id),
            principal=str(session.principal),
            endpoint=session.endpoint,
            era=session.era,
            reason="the operator ended it",
        )
        await backend.audit.record([told])
        _out.print(f"ended {redact(session.id)}", highlight=False)

    _run(store, work)


@app.command("events")
def events(
    store: StoreOption,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many to show.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """What happened to sessions lately, newest first."""

    async def work(backend: Backend) -> None:
        trail = await backend.audit.recent(limit)
        for event in trail:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.at))
            if as_json:
                typer.echo(json.dumps({f: getattr(event, f) for f in event.__slots__}, ensure_ascii=False))
            else:
                took = f"{event.took_s * 1_000:.1f} ms" if event.outcome else ""
                who = (event.session, event.principal, event.endpoint)
                words = (at, event.event, *who, event.tool, event.outcome, took, event.reason)
                _out.print("  ".join(word for word in words if word), highlight=False, markup=False)

    _run(store, work)
