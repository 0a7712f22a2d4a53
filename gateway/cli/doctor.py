"""`mcp-session-gateway doctor`: checks a configuration and its surroundings, and says what to do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from gateway.cli.terminal import Terminal
from gateway.config.settings import ConfigurationError, Settings, load_settings
from gateway.doctor.findings import Finding, failure, ok
from gateway.observability.visible import as_json as to_json
from gateway.observability.visible import visible
from session_store import StoreError, backend_for
from session_store.connect import BackendOptions

__all__ = ["doctor"]

_MARKS: Final = {"ok": "green", "warning": "yellow", "error": "red"}


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file of the gateway, as for `run`.")
    ] = None,
    url: Annotated[
        str, typer.Option(help="URL at which clients reach the gateway, for example the load balancer's.")
    ] = "",
    token: Annotated[
        str, typer.Option(envvar="MCP_GATEWAY_TOKEN", help="A client's credential for --url. Prefer the variable.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check configuration, keys, store, clocks, limits, servers and load balancer. Exit status 1 after an error."""
    from gateway.observability.logs import configure_logging

    configure_logging("critical")
    out = Terminal()

    async def look() -> list[Finding]:
        findings = []
        async for finding in _all(config, url, token):
            findings.append(finding)
            if not as_json:
                mark = (f"{finding.state:<8}", _MARKS[finding.state])
                out.print(Text.assemble(mark, f" {finding.check}: {visible(finding.what)}"))
                if finding.do:
                    out.print(f"         → {finding.do}")
        return findings

    findings = asyncio.run(look())
    if as_json:
        typer.echo(to_json([asdict(finding) for finding in findings]))
    raise typer.Exit(1 if any(finding.state == "error" for finding in findings) else 0)


async def _all(config: Path | None, url: str, token: str) -> AsyncIterator[Finding]:
    from gateway.doctor.front_door import check_outside

    try:
        settings = load_settings(config)
    except ConfigurationError as error:
        for line in str(error).splitlines():
            yield failure("configuration", line, "correct this setting; docs/settings.md lists all of them")
    else:
        yield ok("configuration", f"{config or 'the environment'}: {len(settings.mcpServers)} servers")
        async for finding in _of(settings):
            yield finding
    if url:
        async for finding in check_outside(url, token):
            yield finding


async def _of(settings: Settings) -> AsyncIterator[Finding]:
    from gateway.doctor.machine import check_access, check_keys, check_limits
    from gateway.doctor.replicas import check_replicas
    from gateway.doctor.servers import check_servers
    from gateway.doctor.stores import check_store
    from gateway.doctor.workspaces import check_workspaces

    for check in (check_keys, check_access, check_workspaces, check_limits):
        for finding in check(settings):
            yield finding
    url = settings.gateway.store
    try:
        backend = backend_for(url, BackendOptions(exclusive=False))
    except StoreError as error:
        yield failure("store", str(error), "correct gateway.store, the store's URL")
    else:
        async for finding in check_store(url, backend):
            yield finding
        async for finding in check_replicas(settings, backend_for(url, BackendOptions(exclusive=False))):
            yield finding
    async for finding in check_servers(settings):
        yield finding
