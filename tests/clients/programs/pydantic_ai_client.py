"""Pydantic AI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main
from pydantic_ai.mcp import MCPToolset


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    async with MCPToolset(url, headers=headers) as server:

        async def call(name: str) -> str:
            answer = await server.direct_call_tool(name, {})
            return str(answer)

        yield call


main(connect)
