"""`make bench`: the gateway beside what bounds it, in one run. Rows take turns, round by round, so that a noisy machine
is noisy for all of them; shares are medians of the shares of each round."""

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from bench.features import collector
from bench.load import Run, measured, open_many, opened
from bench.peers import peers
from bench.place import Place, Row
from bench.subjects import ROOT, served
from bench.tables import TABLES
from tests.support.redis_server import running_redis

WARM_UP_S: Final = 1.0

# What a table has to show: row, of which row, at least. Ratios only: machines differ. Each is a tenth below what was
# measured last (docs/adr/0040-the-fast-path.md). Calls between the eras are a promise.
FLOORS: Mapping[str, Sequence[tuple[str, str, float]]] = {
    "stores": [
        ("gateway, redis", "minimal relay", 0.90),
        ("gateway, redis, modern", "minimal relay", 0.84),
        ("gateway, memory", "minimal relay", 0.87),
        ("forwarded, redis", "minimal relay", 0.60),
    ],
    "one": [("gateway, redis", "minimal relay", 1.2)],
    "eras": [
        ("legacy client, modern server", "legacy client, legacy server", 1 / 1.3),
        ("modern client, legacy server", "modern client, modern server", 1 / 1.3),
        ("answers as event streams", "minimal relay", 0.45),
    ],
    "features": [("everything, spans of 1 trace of 100", "nothing", 0.42)],
    "app": [("session untouched", "bare Starlette app", 0.70)],
    "peers": [("gateway, redis", "supergateway, stateful", 5.3), ("gateway, redis", "FastMCP proxy", 25.0)],
}


def measure(rows: Sequence[Row], seconds: float, rounds: int) -> dict[str, list[Run]]:
    """Each row, as often as there are rounds."""
    results: dict[str, list[Run]] = {row.name: [] for row in rows}
    with contextlib.ExitStack() as stack:
        running = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, row in enumerate(rows):
            base, process = stack.enter_context(served(row.subject))
            url = base.replace("/mcp", row.load.path)
            owner = url if row.owner is None else stack.enter_context(served(row.owner))[0]
            file = folder / f"{number}.lua"
            row.load.write(file, opened(owner, row.load))
            if row.load.idle:
                asyncio.run(open_many(base.replace("/mcp", row.load.idle_path), row.load.idle))
            running.append((row, url, file, process))
        for _ in range(rounds):
            for row, url, file, process in running:
                # It has rested for as long as all others took: some machines take the memory of what rests.
                measured(url, file, WARM_UP_S, process, row.load.connections, row.load.client)
                results[row.name].append(measured(url, file, seconds, process, row.load.connections, row.load.client))
    return results


def share(results: Mapping[str, Sequence[Run]], row: str, of: str) -> float:
    """How much one row has of another's rate: the median of all rounds."""
    return statistics.median(a.rate / b.rate for a, b in zip(results[row], results[of], strict=True))


def share_of_cpu(results: Mapping[str, Sequence[Run]], row: str, of: str) -> float:
    """How many calls one row serves with a second of CPU, of those of another: the median of all rounds."""
    return statistics.median(b.cpu_s / max(a.cpu_s, 1e-9) for a, b in zip(results[row], results[of], strict=True))


def lateness(results: Mapping[str, Sequence[Run]], row: str, of: str) -> float:
    """How many times another row's p99 one row's is: the median of all rounds."""
    return statistics.median(a.p99_ms / b.p99_ms for a, b in zip(results[row], results[of], strict=True))


BARE: Final = "bare ASGI app"


def show(name: str, results: Mapping[str, Sequence[Run]]) -> None:
    """One table. Shares are those of the first row, or of the `minimal relay,` of the same client or size; those of the
    CPU compare calls for each second of CPU."""
    columns = ["calls/s", "spread", "share", "of bare", "p50 ms", "p99 ms", "share", "µs CPU", "share", "MB", "errors"]
    if BARE not in results:
        columns.remove("of bare")
    table = Table(name, *columns, box=None)
    first = next(iter(results))
    for row, runs in results.items():
        first = row if row.startswith("minimal relay,") else first

        def middle(field: str, runs: Sequence[Run] = runs) -> float:
            return float(statistics.median(getattr(run, field) for run in runs))

        rates = [run.rate for run in runs]
        spread = (max(rates) - min(rates)) / statistics.median(rates) / 2
        table.add_row(
            row,
            f"{middle('rate'):,.0f}",
            f"±{spread:.0%}",
            *(f"{share(results, row, of):.0%}" for of in (first, BARE) if of in results),
            f"{middle('p50_ms'):.2f}",
            f"{middle('p99_ms'):.2f}",
            f"{lateness(results, row, first):.0%}",
            f"{middle('cpu_s') * 1_000:.0f}",
            f"{share_of_cpu(results, row, first):.0%}",
            f"{middle('memory_mb'):.0f}",
            str(sum(run.errors for run in runs)),
        )
    Console(width=150).print(table)


def failures(name: str, results: Mapping[str, Sequence[Run]]) -> list[str]:
    """What the table has to show and does not."""
    found = [f"{row}: errors" for row, runs in results.items() if any(run.errors for run in runs)]
    for row, of, floor in FLOORS.get(name, ()):
        if (reached := share(results, row, of)) < floor:
            found.append(f"{row} reaches {reached:.0%} of {of}, and has to reach {floor:.0%}")
    return found


def machine() -> dict[str, Any]:
    """Where it was measured."""
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=list(TABLES), help=f"of {', '.join(TABLES)}, peers")
    parser.add_argument("--seconds", type=float, default=3, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="keep the results, with a plot of each table")
    options = parser.parse_args()
    wrong = []
    for name in options.tables:
        with running_redis() as redis, tempfile.TemporaryDirectory() as folder, collector() as spans:
            place = Place(Path(folder), redis.url, spans)
            rows = peers if name == "peers" else TABLES[name]
            results = measure(rows(place), options.seconds, options.rounds)
        show(name, results)
        wrong += failures(name, results)
        if options.save:
            file = ROOT / "bench/results" / f"{name}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({"machine": machine(), "runs": msgspec.to_builtins(results)}, indent=1) + "\n")
            from bench.plots import plot

            plot(name, results, file.with_suffix(".png"))
    for line in wrong:
        Console(stderr=True).print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
