"""How cost grows with sessions, and how many streams one gateway holds: `python -m bench.scale`."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from bench.load import CALL, Load, measured, open_many, opened
from bench.plots import plot_growth
from bench.subjects import ROOT, served
from bench.tables import Place
from tests.support.mcp_clients import ACCEPT
from tests.support.redis_server import running_redis


async def hear(url: str, tokens: list[str]) -> tuple[int, float]:
    """How many of these sessions get a stream of their own at once, and the seconds that a call takes meanwhile."""
    limits = httpx.Limits(max_connections=len(tokens) + 8)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http, asyncio.TaskGroup() as group:
        listening = asyncio.Event()
        count = 0
        done = asyncio.Event()

        async def listen(token: str) -> None:
            nonlocal count
            headers = {"Accept": "text/event-stream", "Mcp-Session-Id": token}
            async with http.stream("GET", url, headers=headers) as response:
                count += response.status_code == 200
                if count == len(tokens):
                    listening.set()
                await done.wait()

        for token in tokens:
            group.create_task(listen(token))
        await asyncio.wait_for(listening.wait(), 60)
        began = time.perf_counter()
        for token in tokens[:50]:
            answer = await http.post(url, json=CALL, headers={**ACCEPT, "Mcp-Session-Id": token})
            assert answer.status_code == 200, answer.text
        took = (time.perf_counter() - began) / 50
        done.set()
    return count, took


def megabytes(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--soak", type=int, default=60, help="seconds of calls while memory is watched")
    parser.add_argument("--save", action="store_true", help="keep a plot")
    options = parser.parse_args()
    points: list[tuple[int, float, float]] = []
    table = Table("live sessions", "calls/s of 32", "p99 ms", "gateway MB", box=None)
    with running_redis() as redis, tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), redis.url)
        entry: dict[str, Any] = {"echo": {"command": place.env["BENCH_ECHO"], "idle_stop_s": 1}}
        with served(place.gateway(servers=entry)) as (url, process):
            file, load = Path(folder, "scale.lua"), Load()
            load.write(file, opened(url, load))
            tokens: list[str] = []
            for target in (0, options.sessions // 10, options.sessions // 2, options.sessions):
                tokens += asyncio.run(open_many(url, target - len(tokens)))
                run = measured(url, file, 3, process)
                assert not run.errors
                points.append((target, run.rate, megabytes(process)))
                table.add_row(f"{target:,}", f"{run.rate:,.0f}", f"{run.p99_ms:.1f}", f"{points[-1][2]:.0f}")
            heard, took = asyncio.run(hear(url, tokens[: options.streams]))
            before = megabytes(process)
            soaked = measured(url, file, options.soak, process)
            after = megabytes(process)
    if options.save:
        panels = {
            "calls per second": [rate for _, rate, _ in points],
            "MB of the gateway": [size for _, _, size in points],
        }
        plot_growth("live sessions", [count for count, _, _ in points], panels, ROOT / "bench/results/sessions.png")
    console = Console(width=120)
    console.print(table)
    console.print(f"{heard:,} streams at once; a call takes {took * 1_000:.1f} ms meanwhile")
    calls = soaked.rate * options.soak
    console.print(f"{calls:,.0f} calls in {options.soak} s: {before:.0f} MB before, {after:.0f} MB after")
    return int(heard < options.streams or soaked.errors > 0 or after > before * 1.1)


if __name__ == "__main__":
    sys.exit(main())
