"""Define the commands that serve: `run` and `stdio`."""

import errno
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.error_exit import error_exit
from gateway.cli.find_configuration import configuration, with_command, with_url
from gateway.cli.main import uncollected
from gateway.cli.options import (
    CommandArgument,
    ConfigOption,
    NamedConfigOption,
    Overrides,
    StrictOption,
    VerboseOption,
    options,
)
from gateway.config.configuration_errors import ConfigurationError, Note, located
from gateway.config.hosts.client_snippets import CREDENTIAL_VARIABLE
from gateway.config.sessions import KEY_HEADER, KEY_VARIABLE
from gateway.config.settings import GatewaySettings, Settings, load

if TYPE_CHECKING:
    from gateway.serving.startup_greeting import Welcome  # loads the server

logger = logging.getLogger(__name__)


@options
def run(
    overrides: Overrides,
    command: CommandArgument = None,
    config: ConfigOption = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Worker processes that share the port; needs a redis store.")
    ] = 1,
    strict: StrictOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Serve MCP over Streamable HTTP.

    A server that cannot be used is left out, with a warning.
    """
    with uncollected():
        from gateway.observability.queued_output import queue_stderr
        from gateway.serving.reload import state_of
        from gateway.serving.uvicorn_server import serve
        from gateway.serving.workers import LISTENER, run_workers

    queue_stderr()
    found = config if command else configuration(config)

    def read() -> Settings:
        try:
            again = load(found, overrides.given(), strict=strict)
            settings = with_command(again.settings, command)
        except ConfigurationError as error:
            raise ConfigurationError(located(str(error), found)) from None
        _log(again.notes)
        return settings

    try:
        read_from = () if found is None else state_of([found])
        loaded = load(found, overrides.given(), strict=strict)
        settings = with_command(loaded.settings, command)
        welcome = _welcome(settings.gateway, found, workers=workers, verbose=verbose)
        if LISTENER not in os.environ:
            if found != config:
                logger.info("the configuration is %s of this folder", found)
            _log(loaded.notes)
        if workers > 1 and LISTENER not in os.environ:
            raise typer.Exit(run_workers(settings, sys.argv[1:], workers))
        serve(settings, welcome, read=read, file=found, read_from=read_from, strict=strict)
    except ConfigurationError as error:
        raise error_exit(located(str(error), found)) from None
    except OSError as error:
        where = f"{settings.gateway.host}:{settings.gateway.port}"
        taken = ": give another port with --port, or --port 0 for a free one"
        do = taken if error.errno == errno.EADDRINUSE else ""
        raise error_exit(f"cannot listen on {where}: {error.strerror or error}{do}") from None


@options
def stdio(
    command: CommandArgument = None,
    config: NamedConfigOption = None,
    url: Annotated[
        str,
        typer.Option(
            help="A running gateway to speak to over HTTP, instead of a command. It gets the session key of "
            f"{KEY_VARIABLE} and the credential of {CREDENTIAL_VARIABLE}."
        ),
    ] = "",
    store: Annotated[str | None, typer.Option(help="URL of the session store.")] = None,
    allow_eval: Annotated[bool, typer.Option("--allow-eval", help="Enable tools whose operation is eval.")] = False,
    strict: StrictOption = False,
) -> None:
    """Serve MCP on stdin and stdout, for one client on this machine."""
    with uncollected():
        from gateway.observability.logs import configure_logging
        from gateway.observability.queued_output import queue_stderr
        from gateway.serving.stdio import serve_stdio

    queue_stderr()
    try:
        # It listens nowhere, so no server can be at its own address.
        loaded = load(config, Overrides(port=0, store=store, allow_eval=allow_eval).given(), strict=strict)
        settings = with_url(loaded.settings, url, command) if url else with_command(loaded.settings, command)
        configure_logging(settings.gateway.log_level, settings.gateway.log_format)
        _log(loaded.notes)
        headers = settings.mcpServers["gateway"].headers if url else {}
        if url and "Authorization" not in headers:
            logger.info("the gateway at %s gets no credential, because %s is not set", url, CREDENTIAL_VARIABLE)
        if url and KEY_HEADER not in headers:
            text = "the gateway at %s gets no session key, because %s is not set: the session ends with this program"
            logger.info(text, url, KEY_VARIABLE)
        serve_stdio(settings, strict=strict)
    except ConfigurationError as error:
        raise error_exit(located(str(error), config)) from None


def _welcome(options: GatewaySettings, config: Path | None, *, workers: int, verbose: bool) -> "Welcome | None":
    """Configure the log. Return the greeting to show if the log is written for people and this process is the only one.
    Otherwise return None: for a log in another format, and with several workers, whose parent announces the gateway."""
    from gateway.observability.logs import configure_logging
    from gateway.serving.workers import LISTENER

    level = "debug" if verbose else options.log_level
    is_alone = workers == 1 and LISTENER not in os.environ
    for_people = options.log_format == "pretty" or (options.log_format == "auto" and sys.stderr.isatty())
    if not (is_alone and for_people):
        configure_logging(level, options.log_format)
        return None
    from gateway.cli.terminal_greeting import StatusLine, TerminalWelcome  # loads rich

    status = StatusLine(sys.stderr) if sys.stderr.isatty() else None
    configure_logging(level, "pretty", status)
    return TerminalWelcome(options, status=status, verbose=verbose, config=config)


def _log(notes: Iterable[Note]) -> None:
    """Log the notes about a configuration that `run` or `stdio` has read. `check` and `doctor` print such notes."""
    for note in notes:
        logger.log(logging.INFO if note.level == "ignored" else logging.WARNING, "%s", note.line)
