"""An MCP server object for the gateway's own process: its tool writes to the log."""

import asyncio
import logging

from mcp.server import MCPServer

from session_store import current_session
from session_store.session import redact

__all__ = ["server"]

logger = logging.getLogger(__name__)
server = MCPServer("noting")


@server.tool()
async def note(word: str) -> str:
    """Log the word before and after other calls run."""
    logger.info("noted %s", word)
    await asyncio.sleep(0.02)
    logger.info("noted %s again", word)
    await asyncio.to_thread(logger.info, "noted %s in a thread", word)
    return redact(current_session().id)
