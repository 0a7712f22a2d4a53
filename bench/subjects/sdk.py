"""The SDK's own server in this process, which relays nothing: `sdk.py PORT json|sse`."""

import sys

from mcp.server import MCPServer

server = MCPServer("echo")


@server.tool()
def echo(text: str = "") -> str:
    """Answers."""
    return "ok"


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]), json_response=sys.argv[2] == "json")
