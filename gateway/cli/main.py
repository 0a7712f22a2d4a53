"""The command line. What operators watch and do is in files of its own; `__main__` adds `demo-server`."""

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.cli.check import check
from gateway.cli.configuration import FILE, configuration
from gateway.cli.doctor import doctor
from gateway.cli.explain import explain
from gateway.cli.operate import app as replicas_app
from gateway.cli.operate import tail, top
from gateway.cli.options import (
    Caller,
    CommandArgument,
    ConfigOption,
    NamedConfigOption,
    Overrides,
    VerboseOption,
    options,
)
from gateway.cli.output import complain
from gateway.cli.sandbox import app as sandbox_app
from gateway.cli.sessions import app as sessions_app
from gateway.cli.setting_up import add, connect, init
from gateway.cli.tasks import app as tasks_app
from gateway.cli.ui import ui
from gateway.config.faults import Note, located
from gateway.config.host_entries import command_fault
from gateway.config.settings import ConfigurationError, GatewaySettings, Settings, load
from gateway.observability.visible import as_json as to_json
from gateway.version import __version__

if TYPE_CHECKING:
    from gateway.serving.greeting import Welcome  # loads the server

__all__ = ["app"]

app = typer.Typer(
    name="mcp-session-gateway",
    help="One durable, isolated session for every MCP client, in front of any MCP server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
logger = logging.getLogger(__name__)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"mcp-session-gateway {__version__}")
        raise typer.Exit


@app.callback()
def gateway(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", "-v", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """One durable, isolated session for every MCP client, in front of any MCP server."""


@options
def run(
    overrides: Overrides,
    command: CommandArgument = None,
    config: ConfigOption = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Worker processes that share the port; needs a redis store.")
    ] = 1,
    verbose: VerboseOption = False,
) -> None:
    """Serve MCP over Streamable HTTP."""
    from gateway.observability.queued_output import queue_stderr
    from gateway.serving.uvicorn_server import serve
    from gateway.serving.workers import LISTENER, run_workers

    queue_stderr()
    found = config if command else configuration(config)
    try:
        loaded = load(found, overrides.given())
        settings = _with_command(loaded.settings, command)
        welcome = _welcome(settings.gateway, workers=workers, verbose=verbose)
        if LISTENER not in os.environ:
            if found != config:
                logger.info("the configuration is %s of this folder", found)
            _log(loaded.notes)
        if workers > 1 and LISTENER not in os.environ:
            raise typer.Exit(run_workers(settings, sys.argv[1:], workers))
        serve(settings, welcome)
    except ConfigurationError as error:
        raise complain(located(str(error), found)) from None
    except OSError as error:
        where = f"{settings.gateway.host}:{settings.gateway.port}"
        taken = ": give another port with --port, or --port 0 for a free one"
        do = taken if error.errno == errno.EADDRINUSE else ""
        raise complain(f"cannot listen on {where}: {error.strerror or error}{do}") from None


@options
def stdio(
    command: CommandArgument = None,
    config: NamedConfigOption = None,
    store: Annotated[str | None, typer.Option(help="URL of the session store.")] = None,
    allow_eval: Annotated[bool, typer.Option("--allow-eval", help="Enable tools whose operation is eval.")] = False,
) -> None:
    """Serve MCP on stdin and stdout, for one client on this machine."""
    from gateway.observability.logs import configure_logging
    from gateway.observability.queued_output import queue_stderr
    from gateway.serving.stdio import serve_stdio

    queue_stderr()
    try:
        loaded = load(config, Overrides(store=store, allow_eval=allow_eval).given())
        settings = _with_command(loaded.settings, command)
        configure_logging(settings.gateway.log_level, settings.gateway.log_format)
        _log(loaded.notes)
        serve_stdio(settings)
    except ConfigurationError as error:
        raise complain(located(str(error), config)) from None


def _welcome(options: GatewaySettings, *, workers: int, verbose: bool) -> "Welcome | None":
    """Configure the log; and what greets a person, if one reads it. Workers are announced by the process that has
    started them."""
    from gateway.observability.logs import configure_logging
    from gateway.observability.status_line import StatusLine
    from gateway.serving.workers import LISTENER

    level = "debug" if verbose else options.log_level
    is_alone = workers == 1 and LISTENER not in os.environ
    for_people = options.log_format == "pretty" or (options.log_format == "auto" and sys.stderr.isatty())
    if not (is_alone and for_people):
        configure_logging(level, options.log_format)
        return None
    from gateway.cli.greeting import TerminalWelcome

    status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
    configure_logging(level, "pretty", status)
    return TerminalWelcome(options, status=status, verbose=verbose)


def _log(notes: Iterable[Note]) -> None:
    """The notes about the configuration, as `check` and `doctor` print them."""
    for note in notes:
        logger.log(logging.INFO if note.level == "ignored" else logging.WARNING, "%s", note.text)


def _with_command(settings: Settings, command: list[str] | None) -> Settings:
    if command and settings.mcpServers:
        raise ConfigurationError("give either a command after -- or a file with mcpServers, not both")
    if command:
        if fault := command_fault(command[0], None):
            raise ConfigurationError(f"the command after -- {fault}: give its words without quotes around all of them")
        entry = {"command": command[0], "args": command[1:]}
        return Settings.model_validate({"mcpServers": {"main": entry}, "gateway": settings.gateway})
    if not settings.mcpServers:
        raise ConfigurationError(
            f"nothing to serve: there is no {FILE} in this folder. Give --config FILE with mcpServers, or a server's "
            "command after --; `mcp-session-gateway init` writes a file with the servers that your clients have"
        )
    return settings


@options
def show_manifest(
    caller: Caller,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND ARG...]", help="A stdio server, instead of --config.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Print all tools of all servers with their schemas, as JSON. With a credential or principal, only those that it
    sees."""
    from gateway.cli.manifest import manifest
    from gateway.observability.logs import configure_logging

    try:
        config = config if command else configuration(config)
        settings = _with_command(load(config).settings, command)
        configure_logging("error")
        typer.echo(to_json(asyncio.run(manifest(settings, caller)), indent=2))
    except ConfigurationError as error:
        raise complain(located(str(error), config)) from None


@options
def keygen() -> None:
    """Print a new signing key for MCP_GATEWAY_KEYS."""
    from session_store.tokens import generate_key

    typer.echo(generate_key())


# What `--help` lists, in its order.
_PANELS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    "Serve": {"run": run, "stdio": stdio},
    "Set up": {"init": init, "add": add, "connect": connect, "keygen": keygen},
    "Check": {"check": check, "doctor": doctor, "explain": explain, "manifest": show_manifest},
    "Operate": {"top": top, "tail": tail, "ui": ui},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_command)
for _name, _below, _panel in (
    ("sandbox", sandbox_app, "Check"),
    ("sessions", sessions_app, "Operate"),
    ("tasks", tasks_app, "Operate"),
    ("replicas", replicas_app, "Operate"),
):
    app.add_typer(_below, name=_name, rich_help_panel=_panel)
