"""What a session without a process takes of the gateway's memory."""

import asyncio
import contextlib
import gc
import tracemalloc

import httpx
import uvloop

from gateway.calls.conversation import Conversation
from gateway.config.settings import Settings
from gateway.serving.app import Gateway, create_app
from session_store import KeyRing
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, server
from tests.support.mcp_clients import ACCEPT, messages
from tests.support.redis_server import RunningRedis
from transports.upstream.process import Process
from transports.upstream.stdio import StdioLink

MOST_BYTES = 4_096
SESSIONS = 100


async def use_sessions(http: httpx.AsyncClient, count: int, tool: str) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "m", "version": "1"}}
    for _ in range(count):
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        opened = await http.post("/mcp", json=body, headers=ACCEPT)
        headers = {**ACCEPT, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": {"text": "x"} if tool == "echo" else {}},
        }
        assert "result" in messages(await http.post("/mcp", json=call, headers=headers))[-1]


async def links_closed() -> None:
    async with asyncio.timeout(30):
        while any(type(thing) is Conversation and thing.link is not None for thing in gc.get_objects()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await asyncio.sleep(0)
    gc.collect()


# Without rates: their accounts are bounded for all sessions together.
RATES = {"opening_rate": 0, "principal_rate": 0, "session_rate": 0, "principal_sessions": 0}


async def bytes_of_an_idle_session(store: str) -> float:
    settings = Settings.model_validate(
        {
            "mcpServers": {"main": {"in_process": "tests.toys.echo_upstream:upstream", "idle_stop_s": 0.05}},
            "gateway": {"store": store, "policy": RATES},
        }
    )
    gateway = Gateway(settings, ring=KeyRing.ephemeral())
    transport = httpx.ASGITransport(create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await use_sessions(http, SESSIONS, "echo")
        await links_closed()
        await gateway.parts.foundation.activity.write()  # as every 10 s
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await use_sessions(http, SESSIONS, "echo")
        await links_closed()
        taken = MOST_BYTES * SESSIONS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(15):
                while taken >= MOST_BYTES * SESSIONS:
                    # Another writing of what sessions did may be under way, with parts of its own in hand.
                    await gateway.parts.foundation.activity.write()
                    await asyncio.sleep(0.1)
                    gc.collect()
                    taken = tracemalloc.get_traced_memory()[0] - before
        return taken / SESSIONS


@requirement("life.idle-memory")
def test_an_idle_session_takes_at_most_4_kib_beside_its_record(redis_server: RunningRedis) -> None:
    tracemalloc.start()
    try:
        taken = uvloop.run(bytes_of_an_idle_session(redis_server.url))
    finally:
        tracemalloc.stop()
    assert taken < MOST_BYTES, f"{taken:,.0f} bytes for each of {SESSIONS} more sessions"


async def processes_of_an_idle_session() -> list[str]:
    settings = Settings.model_validate({"mcpServers": {"main": {**server(DEMO), "idle_stop_s": 0.05}}})
    gateway = Gateway(settings, ring=KeyRing.ephemeral())
    transport = httpx.ASGITransport(create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await use_sessions(http, 1, "count")
        async with asyncio.timeout(30):
            while found := [type(thing).__name__ for thing in gc.get_objects() if type(thing) in (Process, StdioLink)]:
                await asyncio.sleep(0.05)
                gc.collect()
        return found


@requirement("life.idle-memory")
def test_of_a_process_that_was_stopped_nothing_stays_in_memory() -> None:
    assert uvloop.run(processes_of_an_idle_session()) == []
