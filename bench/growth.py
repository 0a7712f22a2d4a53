"""How what a call costs grows with sessions, servers and tools: `python -m bench.growth`.

Each axis has one plot. Sessions are opened as clients open them, over HTTP; they are idle then, without a process.
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from bench.load import INITIALIZE, Load, Run, measured, opened
from bench.plots import plot_growth
from bench.subjects import ROOT, served
from bench.tables import Place
from tests.support.mcp_clients import ACCEPT
from tests.support.redis_server import running_redis

SESSIONS: Final = (0, 1_000, 10_000, 50_000, 100_000)
SERVERS: Final = (1, 4, 16, 64)
TOOLS: Final = (1, 50, 500, 5_000)
ROUNDS: Final = 3
OBJECT: Final = {"echo": {"in_process": "tests.toys.echo_upstream:upstream", "idle_stop_s": 2}}
"""A server without a process, so that 100,000 sessions do not start as many."""


@dataclass
class Point:
    """What was measured with so many of something. `busy`: the share of a second of CPU while nobody calls."""

    count: int
    runs: list[Run] = field(default_factory=list)
    busy: float = 0.0

    @property
    def panels(self) -> dict[str, float]:
        """The figures that are plotted, by their titles."""
        return {
            "µs of CPU a call": statistics.median(run.cpu_s for run in self.runs) * 1_000,
            "p99 ms": statistics.median(run.p99_ms for run in self.runs),
            "MB of the gateway": self.runs[-1].memory_mb,
        }


def idle_sessions(url: str, count: int) -> None:
    """Open so many sessions, one after the other, over one connection."""
    place = url.split("/")
    connection = http.client.HTTPConnection(place[2], timeout=60)
    first, then = json.dumps(INITIALIZE), json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    headers = {"Content-Type": "application/json", **ACCEPT}
    for _ in range(count):
        connection.request("POST", f"/{place[3]}", first, headers)
        answer = connection.getresponse()
        answer.read()
        token = answer.headers["mcp-session-id"]
        connection.request("POST", f"/{place[3]}", then, {**headers, "Mcp-Session-Id": token})
        connection.getresponse().read()
    connection.close()


def busy(process: psutil.Process, seconds: float = 5.0) -> float:
    """The share of a second of CPU that the gateway takes while nobody calls: its sweeps."""
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / seconds


def with_sessions(place: Place, counts: Sequence[int], seconds: float) -> Iterator[Point]:
    """One gateway, which gets more and more sessions."""
    file, load = place.folder / "sessions.lua", Load()
    with served(place.gateway(servers=OBJECT)) as (url, process):
        load.write(file, opened(url, load))
        open_now = 0
        for count in counts:
            idle_sessions(url, count - open_now)
            open_now = count
            time.sleep(3)  # until their links are closed
            point = Point(count, busy=busy(process))
            point.runs += [measured(url, file, seconds, process) for _ in range(ROUNDS)]
            yield point


def with_more(place: Place, counts: Sequence[int], seconds: float, what: str) -> Iterator[Point]:
    """A gateway for each number of servers, or of tools of one server. The gateways take turns."""
    points = [Point(count) for count in counts]
    with ExitStack() as stack:
        gateways = []
        for point in points:
            count, is_servers = point.count, what == "servers"
            entry: dict[str, Any] = {
                "command": place.env["BENCH_ECHO"],
                "env": {"ECHO_TOOLS": "25" if is_servers else str(count)},
            }
            names = [f"s{n * 7 % count}__tool{n % 25}" if count > 1 else f"tool{n % 25}" for n in range(32)]
            load = Load(tools=names if is_servers else [f"tool{n * 997 % count}" for n in range(32)])
            servers = {f"s{n}": entry for n in range(count if is_servers else 1)}
            url, process = stack.enter_context(served(place.gateway(servers=servers)))
            file = place.folder / f"{what}-{count}.lua"
            load.write(file, opened(url, load))
            gateways.append((url, file, process))
        for _ in range(ROUNDS):
            for point, (url, file, process) in zip(points, gateways, strict=True):
                point.runs.append(measured(url, file, seconds, process))
        for point, (_, _, process) in zip(points, gateways, strict=True):
            point.busy = busy(process, 2.0)
    yield from points


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axes", nargs="*", default=["sessions", "servers", "tools"])
    parser.add_argument("--most-sessions", type=int, default=SESSIONS[-1])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of the three runs of a point")
    parser.add_argument("--save", action="store_true", help="keep a plot of each axis")
    options = parser.parse_args()
    errors = 0
    for axis in options.axes:
        with running_redis() as redis, tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder), redis.url)
            if axis == "sessions":
                counts = [count for count in SESSIONS if count <= options.most_sessions]
                points = list(with_sessions(place, counts, options.seconds))
            else:
                points = list(with_more(place, SERVERS if axis == "servers" else TOOLS, options.seconds, axis))
        table = Table(axis, *points[0].panels, "CPU while idle", box=None)
        for point in points:
            figures = [f"{value:,.1f}" for value in point.panels.values()]
            table.add_row(f"{point.count:,}", *figures, f"{point.busy:.1%}")
            errors += sum(run.errors for run in point.runs)
        Console(width=120).print(table)
        if options.save:
            panels = {title: [point.panels[title] for point in points] for title in points[0].panels}
            plot_growth(axis, [point.count for point in points], panels, ROOT / f"bench/results/growth-{axis}.png")
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
