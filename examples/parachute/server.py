"""A server that an orchestrator starts for each session: it finds who it works for in its environment."""

import os

from mcp.server import MCPServer

server = MCPServer("orchestrated")


@server.tool()
def whose() -> str:
    """Session, workspace and trust, as the orchestrator says."""
    return " ".join(os.environ[f"PARACHUTE_{name}"] or "-" for name in ("SESSION_ID", "WORKSPACE_ID", "TRUST_LEVEL"))


@server.tool()
def write_file(name: str) -> str:
    """Only for sessions of direct trust."""
    return f"wrote {name}"


if __name__ == "__main__":
    server.run("stdio")
