"""Honest clients in a process of their own: sessions that call a tool at a steady pace, and how long they waited.

The time of a call is counted from when it was due, not from when it could be sent: who waits for an answer before the
next question would not notice that everything stood still (coordinated omission).
"""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import h11

from tests.support.gateway_process import ROOT
from tests.support.wire import ACCEPT, LEGACY, hello, legacy_body

__all__ = ["Felt", "Honest", "Lane", "running_honest"]

_ANSWER_WITHIN_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Sessions at one door: so many, which make so many calls a second together."""

    name: str
    port: int
    keys: tuple[str, ...]
    per_s: float
    path: str = "/servers/calm/mcp"
    source: str = "127.0.5.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Felt:
    """What a lane felt in a while, in milliseconds."""

    calls: int
    failed: int
    p50: float
    p99: float
    worst: float

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.p50:.1f} / {self.p99:.1f}{failed}"


# -- in the process of the clients


class _Client:
    """One session on one connection, which it opens again when it is cut."""

    def __init__(self, lane: Lane, number: int) -> None:
        self._lane = lane
        self._number = number
        self._key = lane.keys[number]
        self._session = ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._http = h11.Connection(our_role=h11.CLIENT)

    async def _exchange(self, body: Any) -> tuple[int, Mapping[str, str], bytes]:
        if self._streams is None:
            self._http = h11.Connection(our_role=h11.CLIENT)
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._lane.port, local_addr=(self._lane.source, 0)
            )
        data = json.dumps(body).encode()
        headers = [("Host", "localhost"), ("Accept", ACCEPT), ("Content-Type", "application/json")]
        headers += [("Authorization", f"Bearer {self._key}"), ("Content-Length", str(len(data)))]
        if self._session:
            headers += [("Mcp-Session-Id", self._session), ("MCP-Protocol-Version", LEGACY)]
        request = h11.Request(method="POST", target=self._lane.path, headers=headers)
        parts = [self._http.send(request), self._http.send(h11.Data(data)), self._http.send(h11.EndOfMessage())]
        self._streams[1].write(b"".join(part or b"" for part in parts))
        return await self._answer(self._streams[0])

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, Mapping[str, str], bytes]:
        status, headers, body = 0, {}, b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await reader.read(1 << 16))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("closed")
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
            self.cut()
        else:
            self._http.start_next_cycle()
        return status, headers, body

    def cut(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def open(self) -> None:
        """A session."""
        status, headers, body = await self._exchange(legacy_body("initialize", hello()))
        if status != 200:
            raise ConnectionError(f"no session: {status} {body[:200]!r}")
        self._session = headers["mcp-session-id"]
        await self._exchange({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _call(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                status, _, body = await self._exchange(legacy_body("tools/call", {"name": "count", "arguments": {}}))
        except (OSError, TimeoutError, h11.ProtocolError):
            self.cut()
            return False
        return status == 200 and b'"result"' in body

    async def work(self, begin: float) -> None:
        """Calls, for ever. Each is told as a line: lane, session, when it was due, how long it took, how it went."""
        every = len(self._lane.keys) / self._lane.per_s
        due = begin + every * self._number / len(self._lane.keys)
        while True:
            await asyncio.sleep(due - time.monotonic())
            good = await self._call()
            took = time.monotonic() - due
            sys.stdout.write(f"{self._lane.name} {self._number} {due:.6f} {took:.6f} {int(good)}\n")
            sys.stdout.flush()
            due += every


async def _main(lanes: list[Lane]) -> None:
    clients = [_Client(lane, number) for lane in lanes for number in range(len(lane.keys))]
    for client in clients:
        await client.open()
        await client._call()  # its server is there before anything is measured
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*(client.work(time.monotonic() + 0.1) for client in clients))


# -- in the process of who watches


class Honest:
    """The process, and what it told so far."""

    def __init__(self, process: subprocess.Popen[str], lanes: list[Lane]) -> None:
        self._process = process
        self._sessions = {lane.name: len(lane.keys) for lane in lanes}
        self._told: dict[str, list[tuple[float, float, int, bool]]] = {lane.name: [] for lane in lanes}
        self._new = threading.Condition()
        self._is_ready = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._new:
                if line == "ready\n":
                    self._is_ready = True
                else:
                    lane, number, due, took, good = line.split()
                    self._told[lane].append((float(due), float(took), int(number), good == "1"))
                self._new.notify_all()
        with self._new:
            self._new.notify_all()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_ready(self) -> None:
        with self._new:
            self._new.wait_for(lambda: self._is_ready or self._process.poll() is not None, 60)
            assert self._is_ready, "the honest clients could not open their sessions"

    def felt(self, lane: str, begin: float, end: float | None = None) -> Felt:
        """What that lane felt from then to now, or to that moment; waits until all its calls of that time are over."""
        end = time.monotonic() if end is None else end
        told = self._told[lane]
        with self._new:
            self._new.wait_for(
                lambda: (
                    len({number for due, _, number, _ in told if due >= end}) == self._sessions[lane]
                    or self._process.poll() is not None
                ),
                _ANSWER_WITHIN_S + 5,
            )
            found = [(took * 1000, good) for due, took, _, good in told if begin <= due < end]
        times = sorted(took for took, _ in found) or [float("inf")]
        return Felt(
            calls=len(found),
            failed=sum(not good for _, good in found),
            p50=times[len(times) // 2],
            p99=times[min(len(times) - 1, int(len(times) * 0.99))],
            worst=times[-1],
        )


@contextmanager
def running_honest(lanes: list[Lane]) -> Iterator[Honest]:
    """The process, ready, and gone at the end."""
    given = json.dumps([{name: getattr(lane, name) for name in Lane.__dataclass_fields__} for lane in lanes])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.honest", given], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    honest = Honest(process, lanes)
    try:
        honest.wait_ready()
        yield honest
    finally:
        honest.close()


def main() -> None:
    import gc

    import uvloop

    parser = argparse.ArgumentParser(description="Honest clients.")
    parser.add_argument("lanes")
    lanes = [Lane(**{**given, "keys": tuple(given["keys"])}) for given in json.loads(parser.parse_args().lanes)]
    gc.freeze()
    gc.disable()  # its own pauses would look like the gateway's
    uvloop.run(_main(lanes))


if __name__ == "__main__":
    main()
