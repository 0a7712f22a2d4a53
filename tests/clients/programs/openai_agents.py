"""The OpenAI Agents SDK."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agents.mcp import MCPServerStreamableHttp
from driver import Call, main


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    params = {"url": url, "headers": headers}
    async with MCPServerStreamableHttp(params, client_session_timeout_seconds=60) as server:

        async def call(name: str) -> str:
            return (await server.call_tool(name, {})).content[0].text

        yield call


main(connect)
