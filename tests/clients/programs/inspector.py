"""The inspector's command line, a new client for each call: `python inspector.py SPECIFICATION NODE CLI`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from driver import Call, main

NODE, CLI = sys.argv[2:4]


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncIterator[Call]:
    async def call(name: str) -> str:
        command = [NODE, CLI, "--cli", url, "--transport", "http", "--method", "tools/call", "--tool-name", name]
        for field, value in headers.items():
            command += ["--header", f"{field}: {value}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        answer, _ = await process.communicate()
        return json.loads(answer)["content"][0]["text"]

    yield call


main(connect)
