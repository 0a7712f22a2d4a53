"""A server written for one session, which its variables name. It keeps what it finds in the session's state, so that it
is still there after a restart."""

import os

from mcp.server import MCPServer

from session_store import current_session

server = MCPServer("catalog")


@server.tool()
async def search(text: str) -> str:
    """Search, and remember it."""
    searches = await current_session().state.increment("searches")
    return f"{text}: search {searches} of {os.environ['STAC_MCP_AGENT_ID']} for {os.environ['STAC_MCP_USER_ID']}"


@server.tool()
def session() -> str:
    """The session this server was started for."""
    return os.environ["STAC_MCP_SESSION_ID"]


if __name__ == "__main__":
    server.run("stdio")
