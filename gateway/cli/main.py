"""The command line. What operators watch and do is in files of its own; `__main__` adds `demo-server`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.doctor import doctor
from gateway.cli.operate import app as replicas_app
from gateway.cli.operate import tail, top
from gateway.cli.options import CommandArgument, ConfigOption, JsonOption, Overrides, options
from gateway.cli.output import complain
from gateway.cli.sessions import app as sessions_app
from gateway.cli.terminal import Terminal
from gateway.config.settings import ConfigurationError, Settings, load_settings
from gateway.observability.visible import as_json as to_json
from gateway.observability.visible import visible_line

__all__ = ["app"]

app = typer.Typer(
    name="mcp-session-gateway",
    help="One durable, isolated session for every MCP client, in front of any MCP server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(sessions_app, name="sessions")
app.add_typer(replicas_app, name="replicas")
app.command("top")(top)
app.command("tail")(tail)
app.command("doctor")(doctor)
_err = Terminal(stderr=True)


@app.command()
@options
def run(
    overrides: Overrides,
    command: CommandArgument = None,
    config: ConfigOption = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Worker processes that share the port; needs a redis store.")
    ] = 1,
) -> None:
    """Serve MCP over Streamable HTTP."""
    from gateway.observability.logs import configure_logging
    from gateway.serving.uvicorn_server import serve
    from gateway.serving.workers import LISTENER, run_workers

    try:
        settings = load_settings(config, overrides.given())
        settings = _with_command(settings, command)
        configure_logging(settings.gateway.log_level, settings.gateway.log_format)
        if workers > 1 and LISTENER not in os.environ:
            raise typer.Exit(run_workers(settings, sys.argv[1:], workers))
        serve(settings)
    except ConfigurationError as error:
        raise complain(str(error)) from None
    except OSError as error:
        where = f"{settings.gateway.host}:{settings.gateway.port}"
        raise complain(f"cannot listen on {where}: {error.strerror or error}") from None


@app.command()
def stdio(
    command: CommandArgument = None,
    config: ConfigOption = None,
    store: Annotated[str | None, typer.Option(help="URL of the session store.")] = None,
    allow_eval: Annotated[bool, typer.Option("--allow-eval", help="Enable tools whose operation is eval.")] = False,
) -> None:
    """Serve MCP on stdin and stdout, for one client on this machine."""
    from gateway.observability.logs import configure_logging
    from gateway.serving.stdio import serve_stdio

    try:
        given = Overrides(store=store, allow_eval=allow_eval).given()
        settings = _with_command(load_settings(config, given), command)
        configure_logging(settings.gateway.log_level, settings.gateway.log_format)
        serve_stdio(settings)
    except ConfigurationError as error:
        raise complain(str(error)) from None


def _with_command(settings: Settings, command: list[str] | None) -> Settings:
    if command and settings.mcpServers:
        raise ConfigurationError("give either a command after -- or a file with mcpServers, not both")
    if command:
        entry = {"command": command[0], "args": command[1:]}
        return Settings.model_validate({"mcpServers": {"main": entry}, "gateway": settings.gateway})
    if not settings.mcpServers:
        raise ConfigurationError("nothing to serve: give --config FILE with mcpServers, or a server's command after --")
    return settings


@app.command()
def check(
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file to check.")],
    as_json: JsonOption = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not start or contact the servers.")] = False,
) -> None:
    """Check a configuration file, and that its policy matches what the servers list. Exit status 2 if it is invalid."""
    from gateway.config.keyring import key_ring
    from gateway.doctor.workspaces import check_workspaces

    try:
        settings = load_settings(config)
        key_ring(settings.gateway.store)
        warnings = [f"{one.what}; {one.do}" for one in check_workspaces(settings) if one.state != "ok"]
        warnings += [] if settings.mcpServers else ["nothing to serve: mcpServers is empty or missing"]
        warnings += [] if offline else asyncio.run(_compared(settings))
    except ConfigurationError as error:
        if not as_json:
            raise complain(str(error)) from None
        typer.echo(to_json({"good": False, "faults": str(error).splitlines()}))
        raise typer.Exit(2) from None
    names = ", ".join(settings.mcpServers) or "no servers"
    found = {"good": True, "servers": [*settings.mcpServers], "warnings": warnings}
    typer.echo(to_json(found) if as_json else visible_line(f"{config}: ok ({names})"))
    for warning in () if as_json else warnings:
        _err.complain("warning", warning)


async def _compared(settings: Settings) -> list[str]:
    """Warnings about what the servers list. Raises `ConfigurationError`: the policy does not match their lists."""
    from gateway.observability.logs import configure_logging
    from gateway.serving.gateway import Gateway
    from gateway.upstreams.review import CORRECT, MEND, asking, review
    from session_store import KeyRing, MemoryBackend

    configure_logging("critical")
    gateway = Gateway(asking(settings), store=MemoryBackend(), ring=KeyRing.ephemeral())
    async with gateway.running():
        policy = settings.gateway.policy
        found = await review(gateway.upstreams, policy.workspaces, gateway.calls)
    refused = [*found.unmatched, CORRECT] if found.unmatched and policy.unmatched_patterns == "refuse" else []
    if found.unusable and policy.unusable_schemas == "refuse" and policy.check_arguments:
        refused += [*found.unusable, MEND]
    if refused:
        raise ConfigurationError("\n".join(refused))
    warnings = [
        f"server {name} did not answer, so its lists were not checked; run `mcp-session-gateway doctor`"
        for name in found.unasked
    ]
    return warnings + (found.unchecked if policy.check_arguments else [])


@app.command("manifest")
def show_manifest(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ARG...]", help="A stdio server, instead of --config.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Print all tools of all servers with their schemas, as JSON."""
    from gateway.cli.manifest import manifest
    from gateway.observability.logs import configure_logging

    try:
        settings = _with_command(load_settings(config), command)
        configure_logging("error")
        typer.echo(to_json(asyncio.run(manifest(settings)), indent=2))
    except ConfigurationError as error:
        raise complain(str(error)) from None


@app.command()
def keygen() -> None:
    """Print a new signing key for MCP_GATEWAY_KEYS."""
    from session_store.tokens import generate_key

    typer.echo(generate_key())
