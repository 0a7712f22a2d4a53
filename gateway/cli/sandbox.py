"""`mcp-session-gateway sandbox`: what a session of a server may touch."""

from typing import Annotated

import typer

from gateway.cli.complaint import complain
from gateway.cli.configuration import configuration
from gateway.cli.learn import learn
from gateway.cli.options import ConfigOption, JsonOption, options
from gateway.config.faults import located
from gateway.config.settings import ConfigurationError, load
from gateway.observability.visible import as_json, visible_line
from gateway.sandbox.enclosures import enclosures_of
from gateway.sandbox.explained import explained, lines_of
from gateway.sandbox.packages import package_folder
from gateway.sandbox.server_sandboxes import server_sandboxes
from transports.upstream.delegation import look

__all__ = ["app"]

app = typer.Typer(help="Explain the sandboxes of servers.", no_args_is_help=True, add_completion=False)


@app.callback()
def sandbox() -> None:
    """Explain the sandboxes of servers."""


app.command("learn")(learn)


@app.command("explain")
@options
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the server in mcpServers.")],
    config: ConfigOption = None,
    in_json: JsonOption = False,
) -> None:
    """Print what a session of a server may touch, and what of it this machine cannot hold. Nothing is started."""
    try:
        config = configuration(config)
        settings = load(config).settings
        entry = settings.mcpServers.get(name)
        if entry is None:
            known = ", ".join(settings.mcpServers) or "none"
            raise ConfigurationError(f"there is no server {name!r} in mcpServers; servers: {known}")
        if not entry.command:
            raise ConfigurationError(f"server {name!r} has no command, so the gateway starts no process for it")
        enclosures = enclosures_of(name, entry, settings.gateway)
    except ConfigurationError as error:
        raise complain(located(str(error), config)) from None
    package = package_folder(settings.gateway.packages, entry)
    delegation = look(settings.gateway.cgroup)
    every = server_sandboxes({name: enclosures}, delegation=delegation)
    found = [explained(one, enclosures, package, delegation) for one in every]
    if in_json:
        typer.echo(as_json({"server": name, "sandboxes": found}, indent=2))
        return
    for one in found:
        for line in lines_of(name, one):
            typer.echo(visible_line(line))
