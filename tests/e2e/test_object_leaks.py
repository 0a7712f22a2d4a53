"""Of sessions that ended, no object, process, descriptor or memory stays behind: on uvloop, as the gateway runs."""

import asyncio
import contextlib
import gc
import logging
import tracemalloc
from typing import NamedTuple

import httpx
import psutil
import pytest
import uvloop

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.settings import Settings
from gateway.serving.app import Gateway, create_app
from session_store import KeyRing
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, UNLIMITED, server
from tests.support.mcp_clients import ACCEPT, messages
from transports.reply_queue import ReplyQueue
from transports.upstream.process import Process

KINDS = (Conversation, Exchange, LiveSession, Process, ReplyQueue)
SESSIONS = 60
KEPT_BYTES = 10 << 10
"""What each session may leave in memory: what is known of ended ones for a while, and no conversation."""


class Held(NamedTuple):
    objects: list[str]
    processes: int
    descriptors: int


def held() -> Held:
    gc.collect()
    itself = psutil.Process()
    objects = sorted(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, KINDS))
    return Held(objects, len(itself.children(recursive=True)), itself.num_fds())


async def settled(expected: Held) -> Held:
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


async def use_many() -> tuple[Held, Held, int]:
    """What is held before and after many sessions, and how many bytes more there are."""
    settings = Settings.model_validate({"mcpServers": {"main": server(DEMO)}, "gateway": {"policy": UNLIMITED}})
    gateway = Gateway(settings, ring=KeyRing.ephemeral())
    transport = httpx.ASGITransport(create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        unused = held()
        for _ in range(SESSIONS // 2):
            await use_a_session(http)
        before = await settled(unused)
        tracemalloc.start()
        for _ in range(SESSIONS):
            await use_a_session(http)
        after = await settled(before)
        return before, after, tracemalloc.get_traced_memory()[0]


@pytest.mark.alone  # what gateways in other threads of the process allocate would count
@requirement("proc.gone", "life.end")
def test_nothing_of_ended_sessions_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest keeps what is logged
    try:
        before, after, grown = uvloop.run(use_many())
    finally:
        tracemalloc.stop()
    assert after == before
    assert grown < SESSIONS * KEPT_BYTES
