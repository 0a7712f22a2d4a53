"""LangChain's MCP adapters, which open a session of their own for each call of a tool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main
from langchain_mcp_adapters.client import MultiServerMCPClient


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    client = MultiServerMCPClient({"gateway": {"transport": "streamable_http", "url": url, "headers": headers}})
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(name: str) -> str:
        answer = await tools[name].ainvoke({})
        return answer if isinstance(answer, str) else answer[0]["text"]

    yield call


main(connect)
