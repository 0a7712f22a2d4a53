"""The 1.x Python SDK client: `python sdk_v1.py URL`. Prints one JSON object. Runs in an environment of its own."""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(url: str) -> None:
    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()

        async def text(name: str, arguments: dict[str, object]) -> str:
            return (await session.call_tool(name, arguments)).content[0].text

        answer = {
            "tools": [tool.name for tool in (await session.list_tools()).tools],
            "whoami": json.loads(await text("whoami", {})),
            "counts": [await text("count", {}), await text("count", {})],
            "slow": await text("slow", {"steps": 2, "interval_s": 0}),
        }
    print(json.dumps(answer))


asyncio.run(main(sys.argv[1]))
