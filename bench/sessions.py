"""Measures what opening sessions costs, with and without prestarted processes, and the memory they hold.

A part of `make bench`; alone: `python -m bench.sessions`.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from bench.growth import OBJECT, idle_sessions
from bench.load import INITIALIZE
from bench.subjects import served
from bench.tables import Place
from tests.support.mcp_clients import ACCEPT, Legacy, tool_text
from tests.support.redis_server import running_redis

START_MS: Final = 500
"""A server's own start: what `npx` takes at least."""


def opening(url: str, count: int, pause_s: float) -> list[float]:
    """Milliseconds from `initialize` to its answer, of one session after the other."""
    times = []
    with httpx.Client(timeout=60) as http:
        http.get(url.replace("/mcp", "/healthz"))
        for _ in range(count):
            time.sleep(pause_s)  # a kit is made while nobody waits: this measures opening, not making
            client = Legacy(url, http)
            began = time.perf_counter()
            answer = client.initialize()
            times.append((time.perf_counter() - began) * 1_000)
            assert answer.status_code == 200, answer.text
            http.cookies.clear()
            client.delete()
    return times


async def at_once(url: str, count: int) -> tuple[int, float]:
    """How many of so many sessions that open at the same moment do, and in how many seconds."""
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        began = time.perf_counter()
        answers = await asyncio.gather(*(http.post(url, json=INITIALIZE, headers=ACCEPT) for _ in range(count)))
        return sum(answer.status_code == 200 for answer in answers), time.perf_counter() - began


def uss_kb(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1_024


def idle(url: str, process: psutil.Process, count: int) -> float:
    """KiB of the gateway for each session that is open and idle, without a process: what it grows by from so many
    sessions to twice as many, as soon as all are idle."""
    sizes = []
    for _ in range(2):
        idle_sessions(url, count)
        time.sleep(4)
        sizes.append(uss_kb(process))
    return (sizes[1] - sizes[0]) / count


def held(url: str, process: psutil.Process, count: int) -> float:
    """KiB of the gateway's own process for each of so many sessions, which have each made a call."""
    with httpx.Client(timeout=60) as http:

        def use(number: int) -> None:
            for _ in range(number):
                client = Legacy(url, http).open()
                assert tool_text(client.tool("echo", {"text": "x"})) == "ok"
                http.cookies.clear()

        use(100)
        before = uss_kb(process)
        use(count)
        return (uss_kb(process) - before) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000)
    options = parser.parse_args()
    table = Table("sessions", "", box=None)
    with running_redis() as redis, tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), redis.url)

        def entry(**more: Any) -> dict[str, Any]:
            env = {"ECHO_START": str(START_MS)} if more.pop("slow", False) else {}
            return {"echo": {"command": place.env["BENCH_ECHO"], "env": env, **more}}

        for name, servers, pause in (
            ("open, cold", entry(), 0.05),
            (f"open, cold, server starts in {START_MS} ms", entry(slow=True), 0.05),
            (f"open, warm, server starts in {START_MS} ms", entry(slow=True, warm=2), START_MS / 1_000 + 0.3),
        ):
            with served(place.gateway(servers=servers)) as (url, _):
                times = opening(url, 22, pause)[2:]
            table.add_row(name, f"p50 {statistics.median(times):.1f} ms, slowest {max(times):.1f} ms")
        with served(place.gateway(servers=entry(slow=True, warm=8))) as (url, _):
            good, seconds = asyncio.run(at_once(url, 100))
            table.add_row("100 opened at once", f"{good} did, in {seconds:.1f} s")
        with served(place.gateway(servers=entry())) as (url, process):
            table.add_row(
                "a live stdio session", f"{held(url, process, options.sessions // 4):.1f} KiB beside its child"
            )
        for count in (options.sessions, 10 * options.sessions):
            with served(place.gateway(servers=OBJECT)) as (url, process):
                kib = idle(url, process, count)
            table.add_row("an idle session, no process", f"{kib:.1f} KiB, from {count:,} to {2 * count:,}")
    Console(width=120).print(table)
    return 0 if good == 100 else 1


if __name__ == "__main__":
    sys.exit(main())
