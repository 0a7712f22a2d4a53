"""Gateways that are killed, or restarted in order, under load behind the shipped load balancers.

A promise: each call gets a status line (`bare` counts connections that were closed without one), an error is one of
JSON-RPC (`foreign` counts others), and no call is executed twice. `cut` is a response that ended in its middle: its
gateway was killed while it answered. One client of each official SDK calls beside the load: `python` and `typescript`
count its answers, `… error` its JSON-RPC errors.
"""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import Client, MCPError

from gateway.errors import OUTCOME_UNKNOWN, STORE_UNAVAILABLE
from tests.clients.test_other_sdks import TYPESCRIPT
from tests.cluster.chaos import Arena
from tests.proof.histories import journal
from tests.requirements import requirement
from tests.support.compose_topology import BALANCERS
from tests.support.redis_server import running_redis
from tests.tools.obtain import node, npm_packages

BROKEN: Final = ("bare", "foreign", "twice", "hung", "wrong", "lost")
_SEEN_S: Final = 2.5
"""Until a load balancer has seen that a gateway is ready."""
_HUNG_S: Final = 30
_EVERY_S: Final = 0.05
_CODE: Final = re.compile(rf"{OUTCOME_UNKNOWN}|{STORE_UNAVAILABLE}")

Call = Callable[[dict[str, Any]], Awaitable[str]]
"""Calls a tool by an SDK; the text of its answer, or of the SDK's error."""


def typescript_client(url: str) -> list[str]:
    """The command of a client that reads calls from stdin, and writes what became of each to stdout."""
    script = npm_packages(TYPESCRIPT) / "sdk_calls.mjs"  # beside node_modules, which is where imports are looked for
    shutil.copy(Path(__file__).with_name(script.name), script)
    return [str(node()), str(script), url]


@contextlib.asynccontextmanager
async def _by_typescript(url: str) -> AsyncIterator[Call]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *await asyncio.to_thread(typescript_client, url), stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None and process.stdout is not None
    given, told = process.stdin, process.stdout

    async def call(arguments: dict[str, Any]) -> str:
        given.write(json.dumps({"name": "echo", "arguments": arguments}).encode() + b"\n")
        outcome = json.loads(await told.readline())
        return str(outcome.get("text") or outcome["error"])

    try:
        yield call
    finally:
        given.close()
        await process.wait()


@contextlib.asynccontextmanager
async def _by_python(url: str) -> AsyncIterator[Call]:
    async with Client(url, mode="legacy") as client:

        async def call(arguments: dict[str, Any]) -> str:
            try:
                result = await client.call_tool("echo", arguments)
            except MCPError as error:
                return str(error.error)
            return str(getattr(result.content[0], "text", result))

        yield call


async def _calls(
    sdk: str, client: contextlib.AbstractAsyncContextManager[Call], found: Counter[str], stopped: asyncio.Event
) -> None:
    """Call until it is enough. What is neither an answer nor a JSON-RPC error is a broken promise."""
    async with client as call:
        for n in itertools.count():
            if stopped.is_set():
                return
            try:
                told = await asyncio.wait_for(call({"call": f"{sdk}-{n}"}), _HUNG_S)
            except Exception as error:  # whatever an SDK makes of what it has got
                told = repr(error)
            what = sdk if told == "ok" else f"{sdk} error" if _CODE.search(told) else "foreign"
            found[what] += 1
            if what == "foreign":
                sys.stderr.write(f"{sdk}: {told}\n")
            await asyncio.sleep(_EVERY_S)


async def figures(balancer: str, times: int, *, rolling: bool = False) -> Counter[str]:
    """What became of the calls while that many gateways were killed, or stopped in order (`rolling`), and replaced."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(running_redis())
        log = Path(folder, "calls")
        arena = Arena(server.url, server.client, log, stack, BALANCERS[balancer])
        await arena.load.start()
        found, stopped = arena.load.outcome.counts, asyncio.Event()
        calling = [
            asyncio.create_task(_calls(sdk, opened(f"{arena.url}/servers/echo/mcp"), found, stopped))
            for sdk, opened in (("python", _by_python), ("typescript", _by_typescript))
        ]
        try:
            for n in range(times):
                await asyncio.sleep(_SEEN_S)
                gateway = arena.gateways[n % 3]
                if rolling:
                    await asyncio.to_thread(gateway.stop)
                else:
                    gateway.kill()
                    await asyncio.sleep(1)
                await arena.replace(n % 3)
            await asyncio.sleep(1)
        finally:
            stopped.set()
            await asyncio.gather(*calling)
            await arena.load.stop()
        executed = Counter(event.call for event in await asyncio.to_thread(journal, log))
    outcome = arena.load.outcome
    for what, count in outcome.resets.items():
        kind = "foreign" if what[:1].isdigit() else "cut" if "complete" in what else "bare"
        found[kind] += count
    found["twice"] = sum(count > 1 for count in executed.values())
    for complaint in [*outcome.wrong[:3], *(f"{count} times {what}" for what, count in outcome.resets.items())]:
        sys.stderr.write(f"{complaint}\n")
    return found


@requirement("rep.takeover", "rep.drain", "ops.deploy")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rolling", [False, True])
@pytest.mark.parametrize("balancer", BALANCERS)
def test_a_lost_gateway_costs_errors_but_no_connection_and_no_second_execution(balancer: str, rolling: bool) -> None:
    found = asyncio.run(figures(balancer, 3, rolling=rolling))
    assert found["python"] and found["typescript"] and not any(found[name] for name in BROKEN), found
    assert found["refused"] < found["sent"] / 20, "a load balancer leaves out gateways that have come back"
