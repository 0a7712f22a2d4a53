"""Servers of the official SDK whose tools store what is too large and catch nothing: the SDK answers for them."""

from typing import Any

from mcp import types
from mcp.server import MCPServer
from mcp.server.lowlevel import Server

from session_store import current_session

__all__ = ["lowlevel", "server"]

server = MCPServer("filling")


@server.tool()
async def fill(key: str, size: int) -> str:
    """Store a text of that size."""
    await current_session().state.set(key, "x" * size)
    return "stored"


@server.tool()
async def increment(key: str) -> str:
    """Increment a key."""
    return str(await current_session().state.increment(key))


@server.tool()
async def annotate(size: int) -> str:
    """Write metadata of that size."""
    await current_session().annotate({"note": "x" * size})
    return "written"


@server.tool()
async def fail() -> str:
    """Fail for a reason that is nobody's business."""
    raise ValueError("the password is hunter2")


@server.resource("filling://too-large")
async def too_large() -> str:
    """A resource whose handler stores what is too large."""
    await current_session().state.set("resource", "x" * 70_000)
    return ""


async def _call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    await current_session().state.set("low", "x" * (params.arguments or {})["size"])
    return types.CallToolResult(content=[types.TextContent(type="text", text="stored")])


async def _list(context: Any, params: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
    return types.ListToolsResult(tools=[types.Tool(name="fill", input_schema=schema)])


lowlevel: Any = Server("low", on_list_tools=_list, on_call_tool=_call)

if __name__ == "__main__":
    server.run()
