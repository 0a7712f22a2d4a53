"""What sessions hold of the gateway: a few KiB while they are idle, and nothing once they have ended: on uvloop."""

import asyncio
import contextlib
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest
import uvloop

import gateway as package
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.settings import Settings
from gateway.serving.app import Gateway, create_app
from session_store import KeyRing
from tests.requirements import requirement
from tests.support.gateway_process import DEMO, UNLIMITED, server
from tests.support.mcp_clients import ACCEPT, messages
from tests.support.redis_server import RunningRedis
from transports.reply_queue import ReplyQueue
from transports.upstream.child_process import Process
from transports.upstream.stdio import StdioLink

SESSIONS = {"idle": 100, "ended": 60}
MOST_BYTES = 4_096
"""What an idle session may take beside its record."""
KEPT_BYTES = 10 << 10
"""What each ended session may leave in memory: what is known of them for a while, and no conversation."""
OWN = [
    tracemalloc.Filter(True, str(Path(package.__file__).parents[1] / room / "*"))
    for room in ("gateway", "session_store", "transports")
]
"""Where the memory is asked for that counts."""


@contextlib.asynccontextmanager
async def running(entry: Any, **options: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    settings = Settings.model_validate({"mcpServers": {"main": entry}, "gateway": {"policy": UNLIMITED, **options}})
    gateway = Gateway(settings, ring=KeyRing.ephemeral())
    transport = httpx.ASGITransport(create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield gateway, http


async def use_sessions(http: httpx.AsyncClient, count: int, tool: str, *, ends: bool = False) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "m", "version": "1"}}
    call: dict[str, Any] = {"name": tool, "arguments": {"text": "x"} if tool == "echo" else {}}
    if ends:
        call["_meta"] = {"progressToken": 1}
    for _ in range(count):
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        opened = await http.post("/mcp", json=body, headers=ACCEPT)
        headers = {**ACCEPT, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        assert "result" in messages(await http.post("/mcp", json=body, headers=headers))[-1]
        if ends:
            assert (await http.delete("/mcp", headers=headers)).status_code == 200


# -- idle


async def links_closed() -> None:
    async with asyncio.timeout(30):
        while any(type(thing) is Conversation and thing.link is not None for thing in gc.get_objects()):  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.05)
    await asyncio.sleep(0)
    gc.collect()


async def bytes_of_an_idle_session(store: str) -> float:
    entry = {"in_process": "tests.toys.echo_upstream:upstream", "idle_stop_s": 0.05}
    # Without rates: their accounts are bounded for all sessions together.
    rates = {"principal_rate": 0, "session_rate": 0, "principal_sessions": 0}
    async with running(entry, store=store, policy=rates) as (gateway, http):
        await use_sessions(http, SESSIONS["idle"], "echo")
        await links_closed()
        await gateway.parts.foundation.activity.write()  # as every 10 s
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await use_sessions(http, SESSIONS["idle"], "echo")
        await links_closed()
        taken = most = MOST_BYTES * SESSIONS["idle"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                while taken >= most:
                    # Another writing of what sessions did may be under way, with parts of its own in hand.
                    await gateway.parts.foundation.activity.write()
                    await asyncio.sleep(0.1)
                    gc.collect()
                    taken = tracemalloc.get_traced_memory()[0] - before
        return taken / SESSIONS["idle"]


@requirement("life.idle-memory")
def test_an_idle_session_takes_at_most_4_kib_beside_its_record(redis_server: RunningRedis) -> None:
    tracemalloc.start()
    try:
        taken = uvloop.run(bytes_of_an_idle_session(redis_server.url))
    finally:
        tracemalloc.stop()
    assert taken < MOST_BYTES, f"{taken:,.0f} bytes for each of {SESSIONS['idle']} more sessions"


@requirement("life.idle-memory")
def test_of_a_process_that_was_stopped_nothing_stays_in_memory() -> None:
    async def stopped() -> None:
        async with running({**server(DEMO), "idle_stop_s": 0.05}) as (_, http):
            await use_sessions(http, 1, "count")
            async with asyncio.timeout(30):
                while any(type(thing) in (Process, StdioLink) for thing in gc.get_objects()):
                    await asyncio.sleep(0.05)
                    gc.collect()

    uvloop.run(stopped())


# -- ended


class Held(NamedTuple):
    objects: list[str]
    processes: int
    descriptors: int

    def is_within(self, expected: "Held") -> bool:
        return self[:2] == expected[:2] and self.descriptors <= expected.descriptors


def held() -> Held:
    gc.collect()
    itself, kinds = psutil.Process(), (Conversation, Exchange, LiveSession, Process, ReplyQueue)
    objects = sorted(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds))
    return Held(objects, len(itself.children(recursive=True)), itself.num_fds())


async def settled(expected: Held) -> Held:
    """What is held once it is no more than expected, or after a time: a process that must end is reaped later."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not held().is_within(expected):  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.1)
    return held()


async def use_many() -> tuple[Held, Held, int]:
    """What is held before and after many sessions, and how many bytes more there are."""
    async with running(server(DEMO)) as (_, http):
        unused = held()
        await use_sessions(http, SESSIONS["ended"] // 2, "count", ends=True)
        # libuv opens /dev/null for its first stream, as a spare, and keeps it.
        before = await settled(unused._replace(descriptors=unused.descriptors + 1))
        tracemalloc.start()
        await use_sessions(http, SESSIONS["ended"], "count", ends=True)
        after = await settled(before)
        ours = tracemalloc.take_snapshot().filter_traces(OWN)  # what the machine has Python do beside it is not
        return before, after, sum(row.size for row in ours.statistics("filename"))


@pytest.mark.alone  # what gateways in other threads of the process allocate would count
@requirement("proc.gone", "life.end")
def test_nothing_of_ended_sessions_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest keeps what is logged
    try:
        before, after, grown = uvloop.run(use_many())
    finally:
        tracemalloc.stop()
    assert after.is_within(before), (before, after)
    assert grown < SESSIONS["ended"] * KEPT_BYTES
