"""A server that knows nothing of sessions: one list, one user. The gateway starts one for each cookie."""

from mcp.server import MCPServer

server = MCPServer("basket")
basket: list[str] = []


@server.tool()
def add(item: str) -> str:
    """Put something in."""
    basket.append(item)
    return ", ".join(basket)


if __name__ == "__main__":
    server.run("stdio")
