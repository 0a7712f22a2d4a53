"""mcp-remote, a stdio server that passes everything on: `python mcp_remote.py SPECIFICATION NODE PROXY legacy|auto`."""

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

NODE, PROXY, PROTOCOL = sys.argv[2:5]


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    args = [PROXY, url, "--transport", "http-only", "--protocol", PROTOCOL]
    for field, value in headers.items():
        args += ["--header", f"{field}:{value}"]
    with tempfile.TemporaryDirectory() as folder:
        server = StdioServerParameters(command=NODE, args=args, env={"MCP_REMOTE_CONFIG_DIR": folder})
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()

            async def call(name: str) -> str:
                return (await session.call_tool(name, {})).content[0].text

            yield call


main(connect)
