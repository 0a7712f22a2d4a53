"""Of a session that ended, no object stays behind: on uvloop, as the gateway runs."""

import asyncio
import contextlib
import gc

import httpx
import uvloop

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.settings import Settings
from gateway.serving.app import Gateway, create_app
from session_store import KeyRing
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, server
from tests.support.mcp_clients import ACCEPT, messages
from transports.reply_queue import ReplyQueue
from transports.upstream.process import Process

KINDS = (Conversation, Exchange, LiveSession, Process, ReplyQueue)


def held() -> list[str]:
    gc.collect()
    return sorted(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, KINDS))


async def settled(expected: list[str]) -> list[str]:
    """What is held when it is as expected, or after a time: a process that was told to end is reaped later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(15):
            while held() != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    return held()


async def use_a_session(http: httpx.AsyncClient) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "m", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    opened = await http.post("/mcp", json=body, headers=ACCEPT)
    headers = {**ACCEPT, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "count", "_meta": {"progressToken": 1}},
    }
    assert "result" in messages(await http.post("/mcp", json=call, headers=headers))[-1]
    assert (await http.delete("/mcp", headers=headers)).status_code == 200


async def use_many() -> tuple[list[str], list[str]]:
    settings = Settings.model_validate({"mcpServers": {"main": server(DEMO)}})
    gateway = Gateway(settings, ring=KeyRing.ephemeral())
    transport = httpx.ASGITransport(create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        before = held()
        for _ in range(10):
            await use_a_session(http)
        return before, await settled(before)


@requirement("proc.gone", "life.end")
def test_nothing_of_an_ended_session_stays_in_memory() -> None:
    before, after = uvloop.run(use_many())
    assert after == before
