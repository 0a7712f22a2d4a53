"""Measures what tasks cost to make, to keep and to ask for. A part of `make bench`; alone: `python -m bench.tasks`.

Two gateways on one Redis. The first makes the tasks, of calls on a Python server on stdio. The second is asked for them
as well.
"""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from bench.load import measured
from bench.subjects import served
from bench.tables import Place
from tests.support.credentials import sha256
from tests.support.gateway_process import WORK, server
from tests.support.mcp_clients import DECLARES_TASKS, modern_body, modern_headers
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.task_client import TaskClient

KEY: Final = "bench-tasks-" + secrets.token_hex(16)
SESSIONS: Final = 20
WITHOUT_LIMITS: Final = """
import runpy
from gateway.tasks.gateway_tasks import quotas
quotas.MAX_PER_SESSION = quotas.MAX_PER_PRINCIPAL = 1_000_000
runpy.run_module("gateway", run_name="__main__", alter_sys=True)
"""
AT_ONCE: Final = 32
CALL_S: Final = 5.0


async def make(url: str, count: int, seconds: float) -> tuple[list[str], float]:
    """The handles of so many tasks of so many seconds each, and how many were made in a second."""
    gate, handles = asyncio.Semaphore(AT_ONCE), list[str]()
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=AT_ONCE)) as http:

        async def one(number: int) -> None:
            arguments = {"job": number, "seconds": seconds}
            body = modern_body("tools/call", {"name": "work", "arguments": arguments}, meta=DECLARES_TASKS)
            headers = {**modern_headers(body), "Authorization": f"Bearer {KEY}"}
            headers["MCP-Gateway-Session-Key"] = f"bench-{number % SESSIONS}"
            async with gate:
                answer = await http.post(url, json=body, headers=headers)
            handles.append(answer.json()["result"]["taskId"])

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        return handles, count / (time.perf_counter() - began)


def write_load(file: Path, handles: Sequence[str]) -> None:
    """What wrk sends (`load.lua`): `tasks/get` of one task after the other."""
    bodies = [modern_body("tasks/get", {"taskId": handle}, meta=DECLARES_TASKS) for handle in handles]
    headers = {**modern_headers(bodies[0]), "Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    del headers["Mcp-Name"]
    parts = {
        "carrier": quoted("Bench"),
        "sessions": listed(["x"] * len(handles)),
        "headers": "{" + ",".join(f"[ {quoted(name)} ]={quoted(value)}" for name, value in headers.items()) + "}",
        "bodies": listed([json.dumps(body, separators=(",", ":")) for body in bodies]),
        "names": listed(handles),
    }
    file.write_text("return {" + ",".join(f"{name}={part}" for name, part in parts.items()) + "}")


def quoted(text: str) -> str:
    return f"[==[{text}]==]"


def listed(texts: Sequence[str]) -> str:
    return "{" + ",".join(map(quoted, texts)) + "}"


def uss_kb(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1_024


def redis_kb(redis: RunningRedis) -> float:
    info: Any = redis.client().info("memory")
    return float(info["used_memory"]) / 1_024


def until_over(url: str, handles: Sequence[str]) -> None:
    with httpx.Client(timeout=30) as http:
        client = TaskClient(url, http, headers={"Authorization": f"Bearer {KEY}"})
        for handle in handles:
            client.until(handle, "completed", within_s=60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stored", type=int, default=10_000)
    parser.add_argument("--working", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    typed = parser.parse_args()
    options = {
        "api_keys": {"bench": sha256(KEY)},
        "limits": {"exchanges": 100_000},
        "tasks": {"at_once": ["*"]},
    }
    table = Table("tasks", "", box=None)
    with running_redis() as redis, tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), redis.url)
        subject = place.gateway(servers={"work": server((*WORK, "legacy"))}, options=options)
        # One client makes more tasks here than a principal may have.
        subject = replace(subject, command=(sys.executable, "-c", WITHOUT_LIMITS, *subject.command[3:]))
        with served(subject) as (first, process), served(subject) as (second, other):
            until_over(first, asyncio.run(make(first, SESSIONS, CALL_S))[0])  # the processes are started
            memory = uss_kb(process)
            working, _ = asyncio.run(make(first, typed.working, 3_600.0))
            table.add_row(
                f"one of {typed.working:,} that work, in the gateway",
                f"{(uss_kb(process) - memory) / typed.working:.1f} KiB",
            )
            asyncio.run(make(first, 1_000, CALL_S))
            memory, stored = uss_kb(process), redis_kb(redis)
            over, rate = asyncio.run(make(first, typed.stored, CALL_S))
            until_over(second, over[-AT_ONCE:])
            table.add_row(f"{typed.stored:,} made", f"{rate:.0f} a second")
            table.add_row("one that is over, in the gateway", f"{(uss_kb(process) - memory) / typed.stored:.2f} KiB")
            table.add_row("one that is over, in Redis", f"{(redis_kb(redis) - stored) / typed.stored:.2f} KiB")
            file, errors = Path(folder, "load.lua"), 0
            for what, handles in (("over", over), ("working", working)):
                write_load(file, handles)
                for where, url, asked in (("its gateway", first, process), ("another gateway", second, other)):
                    run = measured(url, file, typed.seconds, asked)
                    errors += run.errors
                    table.add_row(
                        f"tasks/get of one that is {what}, at {where}",
                        f"{run.rate:,.0f} a second, p50 {run.p50_ms:.1f} ms, p99 {run.p99_ms:.1f} ms",
                    )
            lasting = sum(1 for key in redis.client().scan_iter(count=1_000) if redis.client().ttl(key) == -1)
            table.add_row("keys in Redis without an expiry", str(lasting))
    Console(width=120).print(table)
    return 1 if errors or lasting else 0


if __name__ == "__main__":
    sys.exit(main())
