"""Gateways in other programs and on stdin end as orderly as a served one: they wait for their tasks."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from gateway import Gateway, Settings, create_app
from session_store import KeyRing, Task
from session_store.connect import backend_for
from tests.requirements import requirement
from tests.support.gateway_process import ROOT, WORK, server
from tests.support.mcp_clients import DECLARES_TASKS, messages, modern_body, modern_headers

pytestmark = pytest.mark.anyio

CALL = modern_body("tools/call", {"name": "work", "arguments": {"seconds": 0.8}}, meta=DECLARES_TASKS)


def settings_of(folder: Path) -> dict[str, Any]:
    options = {"store": f"sqlite:///{folder}/store.db", "tasks": {"at_once": ["*"]}, "anonymous": True}
    return {"mcpServers": {"work": server((*WORK, "legacy"))}, "gateway": options}


@contextlib.asynccontextmanager
async def inside(folder: Path) -> AsyncIterator[None]:
    """A program with a gateway that has a task."""
    settings = Settings.model_validate(settings_of(folder))
    gateway = Gateway(settings, ring=KeyRing(["k" * 40]))
    transport = httpx.ASGITransport(app=create_app(settings, gateway=gateway))
    async with gateway.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/mcp", json=CALL, headers=modern_headers(CALL))
        assert messages(answer)[-1]["result"]["status"] == "working"
        yield


async def outcome(folder: Path) -> Task:
    """The task, as the next gateway finds it."""
    store = backend_for(f"sqlite:///{folder}/store.db")
    await store.open()
    (task,) = await store.tasks.page()
    await store.close()
    return task


@requirement("task.durable")
async def test_an_orderly_end_of_a_program_waits_for_its_tasks_and_a_crash_does_not(tmp_path: Path) -> None:
    orderly, crash = tmp_path / "orderly", tmp_path / "crash"
    for folder in (orderly, crash):
        folder.mkdir()
    async with inside(orderly):
        pass
    assert (await outcome(orderly)).status == "completed"
    with pytest.raises(ZeroDivisionError):
        async with inside(crash):
            raise ZeroDivisionError
    left = await outcome(crash)
    assert left.status in ("failed", "cancelled") and "the gateway was stopped before the call" in left.message


@requirement("task.durable", "ctx.stdio-front")
def test_the_end_of_stdin_waits_for_tasks_that_outlive_it(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(settings_of(tmp_path)))
    command = [sys.executable, "-m", "gateway", "stdio", "--config", str(config)]
    env = {**os.environ, "MCP_GATEWAY_KEYS": "k" * 40}
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(CALL).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["status"] == "working"
        process.stdin.close()
        assert process.wait(20) == 0
    assert anyio.run(outcome, tmp_path).status == "completed"
