"""The command `ui`: the console in a terminal, by the REST interface of a running gateway."""

import asyncio

from gateway.admin.operators import OperatorError
from gateway.cli.complaint import complain
from gateway.cli.options import AtGateway, options
from gateway.cli.source import gateway_at

__all__ = ["ui"]

_MISSING = (
    "the terminal console needs the package textual: pip install 'mcp-session-gateway[ui]', or "
    "uvx --from 'mcp-session-gateway[ui]' mcp-session-gateway ui"
)


@options
def ui(gateway: AtGateway) -> None:
    """Sessions, replicas and events in the terminal: search, look into a session, end it, drain a replica."""
    try:
        from gateway.cli.terminal_console import TerminalConsole  # loads textual
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        raise complain(_MISSING) from None
    from gateway.cli.rest_client import RestClient  # loads the HTTP client

    async def running() -> None:
        found = gateway_at(gateway)
        async with RestClient(found.url, found.key).open() as source:
            await source.replicas()  # a wrong key or address is said before the screen is taken
            await TerminalConsole(source, found.url).run_async()

    try:
        asyncio.run(running())
    except OperatorError as error:
        raise complain(str(error)) from None
