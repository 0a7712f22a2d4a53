"""A server that an orchestrator starts for each session: it finds who it works for in its environment.

It enforces that: a name that a model writes, in an argument, opens no other workspace.
"""

import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

NOTES = {"w-red": {"plan": "paint it red"}, "w-blue": {"plan": "paint it blue"}}
WORKSPACE = os.environ["PARACHUTE_WORKSPACE_ID"]

server = MCPServer("orchestrated")


@server.tool()
def whose() -> str:
    """Session, workspace and trust, as the orchestrator says."""
    return " ".join(os.environ[f"PARACHUTE_{name}"] or "-" for name in ("SESSION_ID", "WORKSPACE_ID", "TRUST_LEVEL"))


@server.tool()
def read_note(name: str, workspace: str = WORKSPACE) -> str:
    """Read a note of the session's workspace."""
    if not WORKSPACE or workspace != WORKSPACE:
        raise ToolError("This session has no access to that workspace.")
    return NOTES[WORKSPACE].get(name, "There is no such note.")


@server.tool()
def write_file(name: str) -> str:
    """Only for sessions of direct trust."""
    return f"wrote {name}"


if __name__ == "__main__":
    server.run("stdio")
