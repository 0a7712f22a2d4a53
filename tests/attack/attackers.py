"""Attackers in a process of their own: one loop, bytes made beforehand, everything paced, started and stopped on order.

What one of them does is a stranger's or one principal's doing; how often is said in `KINDS`. They lower their own
priority: what they need themselves is not what the gateway is measured by.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psutil

from tests.support.gateway_process import ROOT
from tests.support.wire import call_body, hello, legacy, legacy_body, post, rpc

__all__ = ["KINDS", "Attackers", "running_attackers"]

KINDS: Final = {
    "header": "one endless header, 4 MB/s",
    "heads": "2,000 half-sent heads from 20 addresses, each sent again when it is cut",
    "readers": "200 clients that ask for 256 KiB each and never read, again when they are cut",
    "batches": "4 batches a second of 64 messages",
    "bodies": "2 bodies of 4 MB a second",
    "keys": "500 bad keys a second",
}
_AUTHORIZED: Final = "mallory-key-0123456789"
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_COUNTS: Final = {"heads": 2_000, "readers": 200}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where, and how much of it: `scale` is 1 for all of it."""

    port: int
    scale: float


class _Connection(asyncio.Protocol):
    """Sends what it is given; reads, unless it is told not to; knows when it is cut."""

    def __init__(self, first: bytes, heard: Callable[[bytes], None], reads: bool = True) -> None:
        self._first = first
        self._heard = heard
        self._reads = reads
        self.lost = asyncio.get_running_loop().create_future()
        self.data = b""
        self.transport: Any = None
        self.came = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if not self._reads:
            transport.pause_reading()
        transport.write(self._first)

    def data_received(self, data: bytes) -> None:
        self.data = (self.data + data)[-65_536:]
        self._heard(data)
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.came.set()
        if not self.lost.done():
            self.lost.set_result(None)


class _Work:
    """The loop's side: what is under way, and how often it has happened."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self.done: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, kind: str) -> None:
        work: Callable[[], Awaitable[None]] = getattr(self, f"_{kind}")
        task = asyncio.ensure_future(work())
        self._tasks.add(task)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _connect(self, name: str, first: bytes, source: str, *, reads: bool = True) -> _Connection:
        def heard(data: bytes) -> None:
            for status in _STATUS.findall(data):  # one that is cut in two is not counted
                self.done[f"{name} {status.decode()}"] += 1

        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(first, heard, reads), "127.0.0.1", self._target.port, local_addr=(source, 0)
        )
        return connection

    async def _one_after_another(
        self, name: str, first: bytes, source: str, *, reads: bool = True, pause_s: float
    ) -> None:
        """A connection that is made again when it is cut."""
        while True:
            connection: _Connection | None = None
            try:
                connection = await self._connect(name, first, source, reads=reads)
                self.done[name] += 1
                await connection.lost
                self.done[f"{name} cut"] += 1
            except OSError:
                self.done[f"{name} refused"] += 1
            finally:
                if connection is not None:
                    connection.transport.abort()
            await asyncio.sleep(pause_s)

    async def _many(self, name: str, first: bytes, *, reads: bool = True) -> None:
        """So many of them, not all in the same moment."""
        count = int(_COUNTS[name] * self._target.scale)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                source = f"127.0.7.{number % 20 + 1}"
                group.create_task(self._one_after_another(name, first, source, reads=reads, pause_s=2.0))
                await asyncio.sleep(0.0005)

    async def _header(self) -> None:
        piece = b"x" * 8_192
        while True:
            connection = None
            try:
                connection = await self._connect(
                    "header", b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX-Long: ", "127.0.6.1"
                )
                self.done["header"] += 1
                while not connection.lost.done():
                    if connection.transport.get_write_buffer_size() < 1 << 16:
                        connection.transport.write(piece)
                    await asyncio.sleep(0.002)
            except OSError:
                self.done["header refused"] += 1
            finally:
                if connection is not None:
                    connection.transport.abort()
            await asyncio.sleep(0.02)

    async def _heads(self) -> None:
        await self._many("heads", b"POST /servers/calm/mcp HTTP/1.1\r\nHost: localhost\r\nX-Half: ")

    async def _readers(self) -> None:
        key = {"Authorization": f"Bearer {_AUTHORIZED}"}
        await self._many("readers", rpc(call_body("big", {"size": 256 << 10}), key), reads=False)

    async def _batches(self) -> None:
        key = {"Authorization": f"Bearer {_AUTHORIZED}"}
        opened = await self._connect("batch session", legacy("initialize", hello("2025-03-26"), key), "127.0.6.2")
        await opened.came.wait()
        head = opened.data.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
        token = next((line.partition(": ")[2] for line in head if line.startswith("mcp-session-id")), "")
        # Tokens are case-sensitive: take it as it came.
        place = opened.data.lower().find(token.encode())
        token = opened.data[place : place + len(token)].decode()
        opened.transport.abort()
        body = json.dumps([legacy_body("tools/call", {"name": "count", "arguments": {}}, n) for n in range(64)])
        request = post(body.encode(), {**key, "Mcp-Session-Id": token})
        await self._paced("batches", request, 4 * self._target.scale)

    async def _bodies(self) -> None:
        key = {"Authorization": f"Bearer {_AUTHORIZED}"}
        request = rpc(call_body("count", {"text": "t" * 4_000_000}), key)
        await self._paced("bodies", request, 2 * self._target.scale)

    async def _keys(self) -> None:
        request = post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Authorization": "Bearer nobody"})
        await self._paced("keys", request, 500 * self._target.scale)

    async def _paced(self, name: str, request: bytes, per_s: float) -> None:
        """So many a second on one connection, which is made again when it is cut."""
        connection, begin, sent = None, time.monotonic(), 0
        try:
            while True:
                if connection is None or connection.lost.done():
                    with contextlib.suppress(OSError):
                        connection = await self._connect(name, b"", "127.0.6.3")
                due = int((time.monotonic() - begin) * per_s)
                if connection is not None and connection.transport.get_write_buffer_size() < 1 << 23:
                    for _ in range(due - sent):
                        connection.transport.write(request)
                        self.done[name] += 1
                sent = due
                await asyncio.sleep(max(0.01, 0.5 / per_s))
        finally:
            if connection is not None:
                connection.transport.abort()


async def _main(target: _Target) -> None:
    work, loop = _Work(target), asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say({"ready": True})
    while line := await reader.readline():
        order = json.loads(line)
        if order == "stop":
            await work.stop()
        else:
            for kind in order:
                work.start(kind)
        _say({"done": dict(work.done)})
        work.done.clear()


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Attackers:
    """The process, as who orders it sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._cpu = psutil.Process(process.pid)
        assert self._heard() == {"ready": True}

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _order(self, order: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._heard()["done"]

    def cpu_s(self) -> float:
        """Processor time so far."""
        times = self._cpu.cpu_times()
        return float(times.user + times.system)

    def start(self, kinds: list[str]) -> None:
        self._order(kinds)

    def stop(self) -> dict[str, int]:
        """How often what was done."""
        done: dict[str, int] = self._order("stop")
        return done


@contextlib.contextmanager
def running_attackers(port: int, scale: float = 1.0) -> Iterator[Attackers]:
    """Idle until told what to do."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.attackers", str(port), str(scale)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield Attackers(process)
    finally:
        process.kill()
        with process:  # closes its pipes
            process.wait(10)


def main() -> None:
    import resource

    import uvloop

    os.nice(10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_main(_Target(port=int(sys.argv[1]), scale=float(sys.argv[2]))))


if __name__ == "__main__":
    main()
