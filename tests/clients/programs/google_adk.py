"""Google's Agent Development Kit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main
from google.adk.tools.mcp_tool.mcp_session_manager import StreamableHTTPConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    toolset = McpToolset(connection_params=StreamableHTTPConnectionParams(url=url, headers=headers))
    tools = {tool.name: tool for tool in await toolset.get_tools()}

    async def call(name: str) -> str:
        # As an agent's run would, without its invocation context.
        session = await tools[name]._mcp_session_manager.create_session()
        return (await session.call_tool(name, {})).content[0].text

    try:
        yield call
    finally:
        await toolset.close()


main(connect)
