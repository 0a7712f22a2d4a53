"""`explain`: what a credential and a workspace see, and which setting decides it."""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gateway.cli.complaint import complain
from gateway.cli.configuration import configuration
from gateway.cli.options import Caller, ConfigOption, options
from gateway.config.faults import located
from gateway.config.settings import ConfigurationError, load
from gateway.observability.visible import as_json, visible_line

__all__ = ["explain", "lines_of"]


@options
def explain(
    caller: Caller,
    config: ConfigOption = None,
    tool: Annotated[str, typer.Option(help="Only this tool, as SERVER__TOOL.")] = "",
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not start or contact the servers.")] = False,
) -> None:
    """Print what a credential and a workspace see, and why, setting by setting."""
    from gateway.cli.explanation import explanation
    from gateway.observability.logs import configure_logging

    configure_logging("critical")
    try:
        config = configuration(config)
        settings = load(config).settings
        found = asyncio.run(explanation(settings, caller, tool=tool, offline=offline))
    except ConfigurationError as error:
        raise complain(located(str(error), config)) from None
    if as_json_:
        typer.echo(as_json(found, indent=2))
        return
    for line in lines_of(found):
        typer.echo(visible_line(line))


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """An explanation for people."""
    yield f"principal: {found['principal']}"
    for name, fact in found["context"].items():
        yield from _fact(name.replace("_", "-"), fact)
    for name, field in found["fields"].items():
        yield from _fact(f"field {name}", field)
    for name, lifetime in found["lifetimes"].items():
        yield f"{name}: {lifetime['value']:g} · {lifetime['why']}"
    for note in found["notes"]:
        yield f"note: {note}"
    for name, server in found["servers"].items():
        yield ""
        yield f"server {name}: {_seen(server)}" + (f" · failed: {server['failed']}" if "failed" in server else "")
        if server["visible"]:
            yield from _inside(server)


def _inside(server: dict[str, Any]) -> Iterator[str]:
    """What a visible server has, and what its processes get."""
    for tool in server.get("tools", ()):
        bound = "".join(f" · {argument} = {field}" for argument, field in tool.get("bind", {}).items())
        operation = f"{tool['operation']} ({tool['operation_from']})"
        yield f"  tool {tool['name']}: {_seen(tool)} · {operation}{bound}"
    for kind in ("prompts", "resources", "methods"):
        for item in server.get(kind, ()):
            yield f"  {kind.removesuffix('s')} {item['name']}: {_seen(item)}"
    for variable, source in server.get("environment", {}).items():
        value = f" = {source['value']!r}" if "value" in source else ""
        yield f"  variable {variable}{value} · {source.get('from') or 'field ' + source['field']}"


def _fact(name: str, fact: dict[str, Any]) -> Iterator[str]:
    value = fact["value"]
    text = " ".join(value) if isinstance(value, list) else {True: "yes", False: "no"}.get(value, str(value))
    sources = [fact["provenance"], *fact["why"]] if text else fact["why"]
    yield f"{name}: {' · '.join(part for part in (text or 'none', *sources) if part)}"


def _seen(item: dict[str, Any]) -> str:
    return "visible" if item["visible"] else f"hidden: {item['why']}"
