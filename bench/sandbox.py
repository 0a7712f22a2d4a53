"""Measures what a sandbox costs: the start of a server, its calls, its connections, and many sessions at once.

A part of `make bench`; alone: `python -m bench.sandbox`.
"""

import argparse
import asyncio
import contextlib
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from bench.cold import legacy_open
from bench.load import INITIALIZE
from bench.place import Place
from bench.subjects import ROOT, echo_server, served
from tests.support.mcp_clients import ACCEPT, Legacy, tool_text
from tests.support.redis_server import running_redis

PROFILES: Final = ("off", "standard", "strict")
_SETTLE_S: Final = 0.1
"""Between two starts: what the one before has left to end must not count for the next."""
_CALLS: Final = 200
_SENT: Final = 256 << 20


@contextlib.contextmanager
def sender() -> Iterator[int]:
    """The port of a program that takes connections, and sends so many bytes to those that ask for all."""

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if connection.recv(16):
                block = bytes(1 << 20)
                for _ in range(_SENT >> 20):
                    connection.sendall(block)

    def take() -> None:
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def entries(port: int) -> Mapping[str, Any]:
    """The servers that are measured: an echo that costs next to nothing, and one that connects."""
    egress = {"command": sys.executable, "args": [str(ROOT / "bench/subjects/egress.py")]}
    return {"echo": {"command": str(echo_server())}, "egress": {**egress, "sandbox": {"reach": [f"127.0.0.1:{port}"]}}}


def call_us(client: Legacy) -> float:
    """Microseconds of a call of the echo: the median of some hundred."""
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        tool_text(client.tool("echo", {"text": "x"}))
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


async def at_once(url: str, count: int) -> tuple[int, float]:
    """How many of so many sessions that open at the same moment answer a call, and in how many seconds all have."""

    async def use(http: httpx.AsyncClient) -> bool:
        opened = await http.post(url, json=INITIALIZE, headers=ACCEPT)
        session = {**ACCEPT, "Mcp-Session-Id": opened.headers.get("mcp-session-id", "")}
        await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        params = {"name": "echo", "arguments": {"text": "x"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return '"result"' in (await http.post(url, json=call, headers=session)).text

    async with contextlib.AsyncExitStack() as stack:
        # A client of its own for each: no cookie leads one into the session of another.
        opened = [httpx.AsyncClient(timeout=120) for _ in range(count)]
        clients = [await stack.enter_async_context(each) for each in opened]
        began = time.perf_counter()
        answered = await asyncio.gather(*(use(http) for http in clients))
        return sum(answered), time.perf_counter() - began


def private_mb(gateway: psutil.Process) -> tuple[float, float]:
    """Private memory in MB: that of the gateway, and that of all its children, of which each session has two."""
    beneath = 0.0
    for child in gateway.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            beneath += child.memory_full_info().uss / 1e6
    return gateway.memory_full_info().uss / 1e6, beneath


def measure(found: dict[tuple[str, str], list[float]], what: str, tries: Mapping[str, Callable[[], float]]) -> None:
    """One value of each, in turns."""
    for profile, attempt in tries.items():
        found.setdefault((what, profile), []).append(attempt())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=500)
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    crowds: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        redis, folder = stack.enter_context(running_redis()), stack.enter_context(tempfile.TemporaryDirectory())
        port = stack.enter_context(sender())
        place = Place(Path(folder), redis.url)

        def gateway(profile: str, servers: Mapping[str, Any]) -> tuple[str, psutil.Process]:
            return stack.enter_context(served(place.gateway(servers=servers, options={"sandbox": profile})))

        alone = {profile: gateway(profile, {"echo": entries(port)["echo"]})[0] for profile in PROFILES}
        both = {profile: gateway(profile, entries(port))[0] for profile in PROFILES}

        def opened(url: str) -> Legacy:
            return Legacy(url, stack.enter_context(httpx.Client(timeout=60))).open()

        warm = {profile: opened(url) for profile, url in alone.items()}
        reaching = {profile: opened(url) for profile, url in both.items()}

        def start(url: str) -> float:
            time.sleep(_SETTLE_S)
            return legacy_open(url)

        def egress(client: Legacy, tool: str) -> float:
            return float(tool_text(client.tool(f"egress__{tool}", {"port": port})))

        for number in range(options.rounds + 1):
            into = found if number else {}  # in the first round files are read
            measure(into, "start, ms", {p: lambda u=u: start(u) for p, u in alone.items()})  # type: ignore[misc]
            measure(into, "call, µs", {p: lambda c=c: call_us(c) for p, c in warm.items()})  # type: ignore[misc]
            for what, tool in (("connection, µs", "connect"), ("one stream, MB/s", "read")):
                measure(into, what, {p: lambda c=c, t=tool: egress(c, t) for p, c in reaching.items()})  # type: ignore[misc]
        for profile in PROFILES:
            with served(place.gateway(servers={"echo": entries(port)["echo"]}, options={"sandbox": profile})) as given:
                url, process = given
                before = private_mb(process)
                good, seconds = asyncio.run(at_once(url, options.sessions))
                own, beneath = (after - less for after, less in zip(private_mb(process), before, strict=True))
            crowds[profile] = f"{good} in {seconds:.1f} s, {own:.0f} + {beneath:.0f} MB"
    table = Table("sandbox", *PROFILES, box=None)
    for what in dict.fromkeys(what for what, _ in found):
        table.add_row(what, *(f"{statistics.median(found[what, profile]):,.2f}" for profile in PROFILES))
    table.add_row(f"{options.sessions} sessions at once", *(crowds[profile] for profile in PROFILES))
    Console(width=120).print(table)
    return 0 if all(text.startswith(f"{options.sessions} ") for text in crowds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
