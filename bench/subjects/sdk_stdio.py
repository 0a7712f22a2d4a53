"""A stdio server made with the SDK: what most servers written in Python are."""

from mcp.server import MCPServer

server = MCPServer("echo")


@server.tool()
def echo(message: str = "") -> str:
    """Answers."""
    return "ok"


if __name__ == "__main__":
    server.run("stdio")
