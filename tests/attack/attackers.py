"""Attackers in a process of their own: bytes made beforehand, everything paced.

What each of them does is a stranger's or one principal's doing; how often is said in `KINDS`. They lower their own
priority: what they need themselves is not what the gateway is measured by.
"""

import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Final

from tests.support.commands import ROOT
from tests.support.credentials import bearer
from tests.support.wire import ask, call_body, hello, legacy_body, post, rpc

KINDS: Final = {
    "header": "one endless header, 4 MB/s",
    "heads": "2,000 half-sent heads from 20 addresses, each sent again when it is cut",
    "readers": "200 clients that ask for 256 KiB each and never read, again after 5 s",
    "batches": "4 batches a second of 64 messages",
    "bodies": "2 bodies of 4 MB a second",
    "keys": "500 bad keys a second",
}
KEY: Final = "mallory-key-0123456789"
"""Of the principal that attacks."""

_PATH: Final = "/servers/tool/mcp"
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")

Use = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


class _Work:
    """What is under way, and how often it was done. `scale` is 1 for all of it."""

    def __init__(self, port: int, scale: float) -> None:
        self._port, self._scale = port, scale
        self.done = Counter[str]()

    async def _again(self, name: str, source: str, use: Use, pause_s: float) -> None:
        """A connection from that address, and another one when that is cut or refused."""
        while True:
            writer = None
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self._port, local_addr=(source, 0), limit=1_024
                )
                self.done[name] += 1
                await use(reader, writer)
            except OSError:
                self.done[f"{name} cut"] += 1
            finally:
                if writer is not None:
                    writer.transport.abort()
            await asyncio.sleep(pause_s)

    async def _many(self, name: str, count: int, use: Use) -> None:
        """So many of them, not all in the same moment."""
        async with asyncio.TaskGroup() as group:
            for number in range(int(count * self._scale)):
                group.create_task(self._again(name, f"127.0.7.{number % 20 + 1}", use, 2.0))
                await asyncio.sleep(0.0005)

    async def _paced(self, name: str, request: bytes, per_s: float) -> None:
        """So many a second on one connection."""
        per_s *= self._scale
        tick_s = max(0.01, 1 / per_s)

        async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reading = asyncio.ensure_future(self._count(name, reader))
            try:
                while not reading.done():
                    writer.write(request * round(per_s * tick_s))
                    await writer.drain()
                    await asyncio.sleep(tick_s)
            finally:
                reading.cancel()

        await self._again(name, "127.0.6.3", use, 0.1)

    async def _count(self, name: str, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            for status in _STATUS.findall(data):  # one that is cut in two is not counted
                self.done[f"{name} {status.decode()}"] += 1

    async def header(self) -> None:
        async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
            while True:
                writer.write(b"x" * 8_192)
                await writer.drain()
                await asyncio.sleep(0.002)

        await self._again("header", "127.0.6.1", use, 0.02)

    async def heads(self) -> None:
        async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"POST /servers/calm/mcp HTTP/1.1\r\nHost: localhost\r\nX-Half: ")
            await reader.read()

        await self._many("heads", 2_000, use)

    async def readers(self) -> None:
        request = rpc(call_body("giant", {"size": 256 << 10}), bearer(KEY), _PATH)

        async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(request)
            await asyncio.sleep(5.0)

        await self._many("readers", 200, use)

    async def batches(self) -> None:
        hello_body = json.dumps(legacy_body("initialize", hello("2025-03-26"))).encode()
        opening = post(hello_body, bearer(KEY), _PATH)
        opened = await asyncio.to_thread(ask, self._port, opening, source="127.0.6.2")
        body = [legacy_body("tools/call", {"name": "pid", "arguments": {}}, number) for number in range(64)]
        headers = {**bearer(KEY), "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        await self._paced("batches", post(json.dumps(body).encode(), headers, _PATH), 4)

    async def bodies(self) -> None:
        await self._paced("bodies", rpc(call_body("pid", {"text": "t" * 4_000_000}), bearer(KEY), _PATH), 2)

    async def keys(self) -> None:
        await self._paced("keys", post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', bearer("nobody"), _PATH), 500)


async def _main(port: int, scale: float, kinds: Collection[str]) -> None:
    work = _Work(port, scale)
    tasks = [asyncio.ensure_future(getattr(work, kind)()) for kind in kinds]
    sys.stdout.write("under way\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):  # an attack that cannot be tried proves nothing
            raise AssertionError(ended)
    sys.stdout.write(json.dumps(work.done))


@contextlib.contextmanager
def attacking(port: int, kinds: Collection[str], scale: float = 1.0) -> Iterator[Counter[str]]:
    """These attacks go on until the end of the block. Then the counter has how often what was done."""
    done = Counter[str]()
    command = [sys.executable, "-m", "tests.attack.attackers", str(port), str(scale), *kinds]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == "under way\n"
        yield done
        told, _ = process.communicate(timeout=30)
        done.update(json.loads(told))


if __name__ == "__main__":
    import uvloop

    os.nice(10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
