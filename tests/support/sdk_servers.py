"""Server objects of the official SDK, on purpose: they run in the gateway's process, and the SDK answers for them."""

import asyncio
import logging
import time
from typing import Any

from mcp import types
from mcp.server import MCPServer
from mcp.server.lowlevel import Server

from session_store import current_session
from session_store.session import redact

logger = logging.getLogger(__name__)
noting, stalling, filling = MCPServer("noting"), MCPServer("stalling"), MCPServer("filling")


@noting.tool()
async def note(word: str) -> str:
    """Log the word before and after other calls run."""
    logger.info("noted %s", word)
    await asyncio.sleep(0.02)
    logger.info("noted %s again", word)
    await asyncio.to_thread(logger.info, "noted %s in a thread", word)
    return redact(current_session().id)


@stalling.tool()
async def block(seconds: float) -> str:
    """Block the event loop."""
    keep_the_loop(seconds)
    return "ok"


def keep_the_loop(seconds: float) -> None:
    """What the gateway's log has to name."""
    time.sleep(seconds)


@filling.tool()
async def fill(key: str, size: int) -> str:
    """Store a text of that size. Nothing is caught here: it may be too large."""
    await current_session().state.set(key, "x" * size)
    return "stored"


@filling.tool()
async def fail() -> str:
    """Fail for a reason that is nobody's business."""
    raise ValueError("the password is hunter2")


@filling.resource("filling://too-large")
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
    filling.run()
