"""The Python SDK 2: `python python_sdk_2.py SPECIFICATION [legacy]`."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from driver import Call, main
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

MODE = sys.argv[2]


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300)) as http,
        Client(streamable_http_client(url, http_client=http), mode=MODE) as client,
    ):

        async def call(name: str) -> str:
            return (await client.call_tool(name, {})).content[0].text

        yield call


main(connect)
