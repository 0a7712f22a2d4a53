"""An MCP server object for the gateway's own process, whose tool blocks the event loop as a careless app's would."""

import time

from mcp.server import MCPServer

__all__ = ["server"]

server = MCPServer("stalling")


@server.tool()
async def block(seconds: float) -> str:
    """Block the event loop."""
    keep_the_loop(seconds)
    return "ok"


def keep_the_loop(seconds: float) -> None:
    """What the gateway's log has to name."""
    time.sleep(seconds)
