"""Servers that stay on the SDK's own transport, with our event log and bus: sessions stay apart, replicas hear."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from gateway.integrations.sdk_event_store import SdkEventStore, SdkSubscriptionBus
from session_store import MemoryBackend
from session_store.redis import RedisBackend
from tests.matrix.run import connected, text
from tests.requirements import requirement
from tests.support.asgi import served
from tests.support.document_blocks import blocks
from tests.support.free_ports import free_port
from tests.support.mcp_clients import Legacy, events
from tests.support.redis_server import RunningRedis


def an_app(store: SdkEventStore) -> Any:
    server = MCPServer("on-its-own")

    @server.tool()
    async def speak(word: str, ctx: Context) -> str:
        await ctx.report_progress(1, 1, word)
        return word

    return store.around(server.streamable_http_app(event_store=store))


@pytest.fixture
def url() -> Iterator[str]:
    with served(an_app(SdkEventStore(MemoryBackend().events)), lifespan="auto") as found:
        yield found


def spoken(client: Legacy, word: str) -> list[tuple[str, str]]:
    params = {"name": "speak", "arguments": {"word": word}, "_meta": {"progressToken": 1}}
    return list(events(client.call("tools/call", params).text.replace("\r\n", "\n")))


def resumed(client: Legacy, event_id: str) -> str:
    with client.get(event_id) as stream:
        seen = ""
        with contextlib.suppress(httpx.ReadTimeout):
            for piece in stream.iter_text():
                seen += piece
        return seen


@requirement("ctx.isolated", "spec.legacy")
def test_a_client_resumes_its_own_stream_and_nobody_elses(url: str) -> None:
    with httpx.Client(timeout=1.0) as http:
        one, two = (Legacy(url, http).open() for _ in range(2))
        mine, theirs = spoken(one, "mine"), spoken(two, "theirs")
        assert mine[0][0] != theirs[0][0], "the same request id, other events"
        assert "mine" in resumed(one, mine[0][0])
        assert "theirs" not in resumed(one, theirs[0][0]) and "mine" not in resumed(two, mine[0][0])


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """The URL of an app on this loop."""
    port = free_port()
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.serve)
        while not running.started:  # noqa: ASYNC110  # it has no event to wait for
            await anyio.sleep(0.01)
        yield f"http://127.0.0.1:{port}/mcp"
        running.should_exit = True


@contextlib.asynccontextmanager
async def replica(redis: RunningRedis) -> AsyncIterator[str]:
    """One process's server, with a bus of its own on the one Redis."""
    backend = RedisBackend(redis.url)
    bus = SdkSubscriptionBus(backend.bus)
    server = MCPServer("replica", subscriptions=bus)

    @server.tool()
    async def change(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        return "changed"

    async with bus.running(), listening(server.streamable_http_app()) as url:
        yield url
    await backend.close()


@requirement("spec.modern", "spec.legacy")
async def test_the_server_in_the_document_stores_events_and_delivers_changes(tmp_path: Path) -> None:
    (text_of_block,) = (block.text for block in blocks("python") if "SdkEventStore" in block.text)
    printed: dict[str, Any] = {}
    exec(text_of_block.replace("redis://localhost:6379/0", f"sqlite:///{tmp_path}/events.db"), printed)
    server: MCPServer = printed["server"]

    @server.tool()
    async def change(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        await ctx.report_progress(1, 1, "changed")
        return "changed"

    with anyio.fail_after(30):
        async with listening(printed["app"]) as url:
            async with connected(url, "modern") as (client, _):
                async with client.listen(tools_list_changed=True) as subscription:
                    assert text(await client.call_tool("change", {})) == "changed"
                    assert type(await anext(aiter(subscription))).__name__ == "ToolsListChanged"
            async with connected(url, "legacy") as (client, _):
                assert text(await client.call_tool("change", {})) == "changed"


@requirement("rep.any", "spec.modern")
async def test_a_change_on_one_replica_is_heard_on_the_other(redis_server: RunningRedis) -> None:
    with anyio.fail_after(30):
        async with (
            replica(redis_server) as here,
            replica(redis_server) as there,
            connected(here, "modern") as (listener, _),
            connected(there, "modern") as (actor, _),
        ):
            async with listener.listen(tools_list_changed=True) as subscription:
                assert text(await actor.call_tool("change", {})) == "changed"
                event = await anext(aiter(subscription))
                assert type(event).__name__ == "ToolsListChanged"
