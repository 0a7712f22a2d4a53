"""`make bench`: requests per second of the gateway on each store, as a share of the limits measured in the same run.

Subjects take turns, round by round, so that a noisy machine is noisy for all of them.
"""

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from tests.support.raw import Legacy, tool_text
from tests.support.redis_server import RunningRedis, running_redis
from tests.tools.programs import program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SESSIONS: Final = 32
FLOOR: Final = 0.50
"""What the gateway on Redis has to reach of the minimal relay."""

HOP: Final = "hop, redis"

Result = Mapping[str, Any]


def echo_server() -> Path:
    """The compiled echo server."""
    target = ROOT / ".cache" / "bench" / "echo"
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = program("cc", "gcc")
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(target), str(HERE / "echo.c")], check=True)
    return target


@contextlib.contextmanager
def served(command: list[str], env: Mapping[str, str]) -> Iterator[str]:
    """A subject in a process of its own; its URL, once it serves."""
    process = subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("ready "):
                yield line.split()[1]
                return
        raise RuntimeError(f"{command} did not start")
    finally:
        process.terminate()
        process.wait(20)


def subjects(echo: Path, redis: RunningRedis, folder: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name → command and environment."""
    env = {"BENCH_REDIS": f"127.0.0.1:{redis.port}", "BENCH_ECHO": str(echo), "MCP_GATEWAY_KEYS": secrets.token_hex(32)}
    python = [sys.executable, "-m"]

    def gateway(store: str, workers: int = 1) -> tuple[list[str], dict[str, str]]:
        typed = [*python, "gateway", "run", "--port", "0", "--store", store, "--workers", str(workers)]
        return [*typed, "--", str(echo)], env

    return {
        "bare ASGI app": ([*python, "tests.bench.serve", "tests.bench.bare:app"], env),
        "minimal relay": ([*python, "tests.bench.serve", "tests.bench.minimal_relay:app"], env),
        "gateway, memory": gateway("memory://"),
        "gateway, sqlite": gateway(f"sqlite:///{folder / 'bench.db'}"),
        "gateway, redis": gateway(redis.url),
        "2 workers, redis": gateway(redis.url, 2),
    }


def opened(url: str, bare: bool) -> list[str]:
    """The tokens of as many sessions as there are connections; one call of each gives the right answer."""
    with httpx.Client(timeout=30) as http:
        tokens = []
        for _ in range(SESSIONS):
            client = Legacy(url, http)
            first = client.initialize()
            assert first.status_code == 200, first.text
            if not bare:
                client.notify("notifications/initialized")
            assert tool_text(client.tool("echo", {"text": "hello"})) == "ok"
            tokens.append(client.session)
            http.cookies.clear()
        return tokens


def measured(url: str, sessions: Path, seconds: float) -> Result:
    """One run of wrk."""
    command = [str(program("wrk", "wrk")), "-t2", f"-c{SESSIONS}", f"-d{seconds:g}s", "--latency"]
    command += ["-s", str(HERE / "load.lua"), url, "--", str(sessions)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result | {"rate": result["requests"] / result["duration_us"] * 1e6}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only subjects with one of these words, split by |")
    options = parser.parse_args()
    results: dict[str, list[Result]] = {}
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls, files = {}, {}
        for name, (command, env) in subjects(echo_server(), redis, folder).items():
            if any(part in name for part in options.only.split("|")):
                urls[name] = stack.enter_context(served(command, env))
                files[name] = folder / name.replace(" ", "-")
                files[name].write_text("\n".join(opened(urls[name], name.startswith("bare"))))
                measured(urls[name], files[name], 1)
        if HOP.partition(",")[0] in options.only or not options.only:
            # Sessions of one gateway, asked for at another: what a request costs that lands on the wrong replica.
            command, env = subjects(echo_server(), redis, folder)["gateway, redis"]
            owner, edge = (stack.enter_context(served(command, env)) for _ in range(2))
            urls[HOP], files[HOP] = edge, folder / "hop"
            files[HOP].write_text("\n".join(opened(owner, False)))
            measured(edge, files[HOP], 1)
        for _ in range(options.rounds):
            for name, url in urls.items():
                results.setdefault(name, []).append(measured(url, files[name], options.seconds))
    return report(results)


def report(results: Mapping[str, list[Result]]) -> int:
    """Print the table; 1 when something failed or is too slow."""
    relay = [run["rate"] for run in results.get("minimal relay", [])]
    table = Table("subject", "requests/s", "of the relay", "p50 ms", "p99 ms", "errors", box=None)
    shares: dict[str, float] = {}
    errors = 0
    for name, runs in results.items():
        if relay:
            shares[name] = statistics.median(r["rate"] / limit for r, limit in zip(runs, relay, strict=True))
        failed = sum(run["errors"] for run in runs)
        errors += failed
        p50, p99 = (statistics.median(run[key] for run in runs) / 1_000 for key in ("p50_us", "p99_us"))
        rate = statistics.median(run["rate"] for run in runs)
        share = f"{shares[name]:.0%}" if name in shares else ""
        table.add_row(name, f"{rate:,.0f}", share, f"{p50:.2f}", f"{p99:.2f}", str(failed))
    Console().print(table)
    if errors or shares.get("gateway, redis", FLOOR) < FLOOR:
        Console(stderr=True).print(
            f"the gateway on Redis has to reach {FLOOR:.0%} of the minimal relay, without errors"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
