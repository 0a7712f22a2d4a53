"""The Python SDK client in both eras: twenty of them at once, and one that meets its session again."""

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import httpx2
import pytest
from mcp import types
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.matrix.run import Heard
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, ROOT, RunningGateway

Era = Literal["legacy", "2026-07-28"]
ERAS = pytest.mark.parametrize("era", ["legacy", "2026-07-28"])


@asynccontextmanager
async def client(url: str, era: Era, headers: Any = None, **more: Any) -> AsyncIterator[Client]:
    """A client with its own connections; like any SDK client, it returns the cookies it is given."""
    async with (
        httpx2.AsyncClient(timeout=30, headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=era, **more) as connected,
    ):
        yield connected


async def text(connected: Client, name: str, arguments: Any = None, **more: Any) -> str:
    result = await connected.call_tool(name, arguments or {}, **more)
    assert isinstance(result.content[0], types.TextContent) and not result.is_error, result
    return result.content[0].text


@ERAS
@requirement("ctx.isolated", "proc.isolated")
async def test_twenty_clients_at_once_never_mix(demo: RunningGateway, era: Era) -> None:
    everybody_is_in = asyncio.Barrier(20)

    async def use() -> tuple[str, list[str]]:
        async with client(demo.url, era) as connected:
            first = await text(connected, "whoami")
            await everybody_is_in.wait()
            counts = [await text(connected, "count") for _ in range(3)]
            assert await text(connected, "whoami") == first
            return json.loads(first)["session_id"], counts

    async with asyncio.timeout(100):
        told = await asyncio.gather(*(use() for _ in range(20)))
    assert len({session for session, _ in told}) == 20
    assert all(counts == ["1", "2", "3"] for _, counts in told)


@pytest.mark.parametrize("era", ["legacy", "2026-07-28", "auto"])
@requirement("ctx.stdio-front", "spec.legacy", "spec.modern")
async def test_the_gateway_on_stdin_and_stdout_is_used_as_any_server(era: Any) -> None:
    warnings.simplefilter("ignore")
    heard = Heard()
    arguments = ["-m", "gateway", "stdio", "--", *DEMO]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, cwd=str(ROOT))
    steps: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    callbacks: dict[str, Any] = {"elicitation_callback": heard.elicit}
    with anyio.fail_after(30):
        async with Client(stdio_client(parameters), mode=era, **callbacks) as connected:
            assert {"count", "ask"} <= {tool.name for tool in (await connected.list_tools()).tools}
            assert [await text(connected, "count") for _ in range(3)] == ["1", "2", "3"]
            assert await text(connected, "ask") == "Hello, Ada!"
            assert await text(connected, "slow", {"steps": 3, "interval_s": 0.01}, progress_callback=note) == "done"
            assert steps == [1, 2, 3]
            assert (await connected.read_resource("demo://session")).contents
