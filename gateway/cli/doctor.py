"""Check a configuration and its surroundings, and say what to do (`doctor`)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer
from rich.text import Text

from gateway.cli.find_configuration import configuration
from gateway.cli.options import ConfigOption, options
from gateway.cli.terminal_output import Terminal
from gateway.doctor.findings import Finding
from gateway.observability.escaped_text import as_json as to_json
from gateway.observability.escaped_text import visible

_MARKS: Final = {"ok": "green", "warning": "yellow", "error": "red"}
_QUIET_S: Final = 3.0
"""Seconds of waiting after which the command prints what it waits for, once for each check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Options of `doctor` for checking a running gateway over the network: its URLs, and credentials for them."""

    url: Annotated[
        str, typer.Option(help="URL at which clients reach the gateway, for example the load balancer's.")
    ] = ""
    admin_url: Annotated[
        str, typer.Option(help="URL of the operators' listener (admin.listen). By default they are served at --url.")
    ] = ""
    token: Annotated[
        str, typer.Option(envvar="MCP_GATEWAY_TOKEN", help="A client's credential for --url. Prefer the variable.")
    ] = ""
    key: Annotated[
        str, typer.Option(envvar="MCP_GATEWAY_ADMIN_KEY", help="An operator's key. Prefer the variable.")
    ] = ""


@options
def doctor(
    reached: Reached,
    config: ConfigOption = None,
    store: Annotated[str, typer.Option("--store", help="The URL of the store, in place of gateway.store.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check configuration, keys, store, clocks, limits, servers, balancer and clients. Exit status 1 after an error.

    Without --url, the gateway that listens where the configuration says is checked as well; without --config, all that
    you run at a terminal of this machine.
    """
    from gateway.doctor.checks import check_everything
    from gateway.doctor.running_gateways import check_running
    from gateway.observability.logs import configure_logging

    configure_logging("critical")
    out = Terminal()

    async def found() -> AsyncIterator[Finding]:
        file, overrides = configuration(config), {"store": store} if store else {}
        async for finding in check_everything(file, overrides, **asdict(reached)):
            yield finding
        if not (reached.url or reached.admin_url):
            async for finding in check_running(file, reached.token, reached.key, is_named=config is not None):
                yield finding

    async def look() -> list[Finding]:
        findings, loop = [], asyncio.get_running_loop()
        waiting = loop.call_later(_QUIET_S, _say_that_it_waits)
        async for finding in found():
            waiting.cancel()
            waiting = loop.call_later(_QUIET_S, _say_that_it_waits)
            findings.append(finding)
            if not as_json:
                mark = (f"{finding.state:<8}", _MARKS[finding.state])
                out.print(Text.assemble(mark, f" {finding.check}: {visible(finding.what)}"))
                if finding.do:
                    out.print(f"         → {finding.do}")
        waiting.cancel()
        return findings

    findings = asyncio.run(look())
    if as_json:
        typer.echo(to_json([asdict(finding) for finding in findings]))
    raise typer.Exit(1 if any(finding.state == "error" for finding in findings) else 0)


def _say_that_it_waits() -> None:
    Terminal(stderr=True).print_waiting("for the next check: a server has limits.start_timeout_s in each era of MCP")
