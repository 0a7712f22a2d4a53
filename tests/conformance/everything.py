"""A stdio server that implements the fixtures of the conformance suite: the one the SDK ships, on stdio.

One tool differs. `test_reconnection` closes its own HTTP stream in the original, which a stdio server cannot; here it
takes longer than the gateway keeps a stream open in this configuration, so that the client has to read on.
"""

import asyncio
import sys
from importlib.metadata import version

from tests.tools.obtain import sdk_source


def main() -> None:
    """Serve stdin and stdout."""
    sys.path.insert(0, str(sdk_source(version("mcp")) / "examples/servers/everything-server"))
    from mcp.server.mcpserver import Context
    from mcp_everything_server.server import mcp  # type: ignore[import-not-found]  # fetched at run time

    async def test_reconnection(ctx: Context) -> str:
        """Tests SSE polling (SEP-1699)."""
        await ctx.info("Before disconnect")
        await asyncio.sleep(2.0)
        await ctx.info("After reconnect")
        return "Reconnection test completed"

    mcp.remove_tool("test_reconnection")
    mcp.tool()(test_reconnection)
    mcp.run("stdio")


if __name__ == "__main__":
    main()
