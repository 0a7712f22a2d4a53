"""The Python SDK 1."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    async with (
        streamablehttp_client(url, headers=headers) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()

        async def call(name: str) -> str:
            return (await session.call_tool(name, {})).content[0].text

        yield call


main(connect)
