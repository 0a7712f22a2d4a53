"""A server whose every tool wants to know the workspace: it is an argument, and the gateway fills it in."""

from mcp.server import MCPServer

server = MCPServer("orbit")
documents = {"w-red": ["plan.md"], "w-blue": ["notes.md", "todo.md"]}


@server.tool()
def list_documents(workspace_id: str) -> str:
    """The documents of a workspace."""
    return ", ".join(documents.get(workspace_id, [])) or f"nothing in {workspace_id}"


if __name__ == "__main__":
    server.run("stdio")
