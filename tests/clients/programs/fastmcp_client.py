"""FastMCP's client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    async with Client(StreamableHttpTransport(url, headers=headers)) as client:

        async def call(name: str) -> str:
            return (await client.call_tool(name, {})).content[0].text

        yield call


main(connect)
