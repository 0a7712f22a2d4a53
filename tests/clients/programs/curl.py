"""curl, which keeps nothing from one call to the next."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    async def call(name: str) -> str:
        given = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
            **headers,
        }
        options = [part for field, value in given.items() for part in ("-H", f"{field}: {value}")]
        params = {"name": name, "arguments": {}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        command = ["curl", "--silent", "--show-error", *options, "--data", body, url]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        answer, _ = await process.communicate()
        return json.loads(answer)["result"]["content"][0]["text"]

    yield call


main(connect)
