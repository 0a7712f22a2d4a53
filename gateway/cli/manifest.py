"""The command `manifest`: all tools of all configured servers with their schemas, without a running gateway."""

import asyncio
from typing import Annotated, Any, Final

import typer

from gateway.cli.complaint import complain
from gateway.cli.configuration import configuration, with_command
from gateway.cli.explanation import context_of
from gateway.cli.options import Caller, ConfigOption, options
from gateway.config.faults import located
from gateway.config.settings import ConfigurationError, Settings, load
from gateway.observability.logs import configure_logging
from gateway.observability.visible import as_json
from gateway.protocol.catalog import named
from gateway.protocol.listing import operation_of
from gateway.serving.gateway import Gateway
from gateway.upstreams.review import asking
from session_store import Context, KeyRing, MemoryBackend

__all__ = ["manifest", "show_manifest"]

_ANYBODY: Final = Context(trust="direct")


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
    try:
        config = config if command else configuration(config)
        settings = with_command(load(config).settings, command)
        configure_logging("error")
        typer.echo(as_json(asyncio.run(manifest(settings, caller)), indent=2))
    except ConfigurationError as error:
        raise complain(located(str(error), config)) from None


async def manifest(settings: Settings, caller: Caller) -> dict[str, Any]:
    """Start each server, ask what it has, and stop it. A server that does not start is listed under `failed`. If the
    caller is not empty, only what the caller sees is listed.

    Raises:
        ConfigurationError: the settings cannot be served.
    """
    gateway = Gateway(asking(settings), store=MemoryBackend(), ring=KeyRing.ephemeral())
    tools, failed = [], {}
    context = None if caller == Caller() else (await context_of(gateway, settings, caller))[1].context
    async with gateway.running():
        for upstream in gateway.upstreams:
            facts = await upstream.facts()
            if facts.failure:
                failed[upstream.name] = facts.failure
            for tool in facts.tools.listed:
                decision = gateway.policy.decide(context or _ANYBODY, upstream.name, tool["name"], operation_of(tool))
                if context is None or decision.allowed:
                    shown = named(upstream.name, tool) if len(gateway.upstreams) > 1 else tool
                    tools.append({**shown, "server": upstream.name, "operation": decision.operation})
    return {"tools": tools} | ({"failed": failed} if failed else {})
