"""Measures cold opens: from a client's first byte to the answer to its first call, with the start of a process between.

A bare spawn starts the same server and writes the same messages to it. A part of `make bench` and `make bench-peers`;
alone: `python -m bench.cold`.
"""

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.load import INITIALIZE
from bench.peers import peers
from bench.place import Place
from bench.subjects import echo_server, served
from tests.support.mcp_clients import modern_body, modern_headers
from tests.support.redis_server import running_redis
from tests.tools.obtain import node, npm_packages

EVERYTHING: Final = {"@modelcontextprotocol/server-everything": "2026.8.31"}
_INITIALIZED: Final = {"jsonrpc": "2.0", "method": "notifications/initialized"}
_CALL: Final = {"name": "echo", "arguments": {"message": "hello"}}
_LEGACY_CALL: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _CALL}
_SETTLE_S: Final = 0.15
"""Between two opens: what the one before has left to end must not count for the next."""


def servers() -> Mapping[str, Sequence[str]]:
    """The stdio servers that are started: one that costs next to nothing, and one of each SDK."""
    everything = npm_packages(EVERYTHING) / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    return {
        "echo in C": (str(echo_server()),),
        "Python SDK": (sys.executable, str(Path(__file__).parent / "subjects/sdk_stdio.py")),
        "Node SDK": (str(node()), str(everything), "stdio"),
    }


# -- a client that costs next to nothing


class Connection:
    """One HTTP connection: sends a request, and reads the answer to its end."""

    def __init__(self, url: str) -> None:
        host, port = url.split("/")[2].split(":")
        self._host = f"{host}:{port}"
        self._target = "/" + "/".join(url.split("/")[3:])
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def send(self, message: Any, headers: Mapping[str, str], method: str = "POST") -> tuple[dict[str, str], bytes]:
        """The headers and the body of the answer."""
        body = b"" if message is None else json.dumps(message).encode()
        given = {
            "Host": self._host,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Content-Length": str(len(body)),
            **headers,
        }
        head = f"{method} {self._target} HTTP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in given.items())
        self._socket.sendall(head.encode() + b"\r\n" + body)
        status = self._file.readline()
        received: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, text = line.decode().partition(":")
            received[name.lower()] = text.strip()
        if not status.split()[1].startswith(b"2"):
            raise RuntimeError(f"{status!r} {self._body(received)!r}")
        return received, self._body(received)

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self._file.read(int(headers.get("content-length", 0)))
        chunks = b""
        while size := int(self._file.readline(), 16):
            chunks += self._file.read(size)
            self._file.readline()
        self._file.readline()
        return chunks

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def legacy_open(url: str) -> float:
    """Milliseconds from `initialize` to the first answer, of a new session, which ends afterwards."""
    with contextlib.closing(Connection(url)) as http:
        began = time.perf_counter()
        headers, _ = http.send(INITIALIZE, {})
        session = {"Mcp-Session-Id": headers["mcp-session-id"]}
        http.send(_INITIALIZED, session)
        _, answer = http.send(_LEGACY_CALL, session)
        took = time.perf_counter() - began
        _check(answer)
        with contextlib.suppress(RuntimeError):
            http.send(None, session, "DELETE")
    return took * 1_000


def _modern_open(url: str) -> float:
    """Milliseconds from the first call to its answer, of a new session."""
    body = modern_body("tools/call", _CALL)
    headers = modern_headers(body)
    with contextlib.closing(Connection(url)) as http:
        began = time.perf_counter()
        _, answer = http.send(body, headers)
        took = time.perf_counter() - began
        _check(answer)
    return took * 1_000


def _check(answer: bytes) -> None:
    if b'"result"' not in answer:
        raise RuntimeError(answer.decode())


# -- without a gateway


def bare(command: Sequence[str], era: str) -> float:
    """Milliseconds from the start of the server to its first answer."""
    call = modern_body("tools/call", _CALL) if era == "modern" else _LEGACY_CALL
    began = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None and process.stdout is not None
    try:
        if era == "legacy":
            _write(process, INITIALIZE)
            process.stdout.readline()
            _write(process, _INITIALIZED)
        _write(process, call)
        while f'"id":{call["id"]}'.encode() not in (line := process.stdout.readline()).replace(b" ", b""):
            if not line:
                raise RuntimeError(f"{command} did not answer")
        took = time.perf_counter() - began
    finally:
        process.kill()
        process.communicate()
    return took * 1_000


def _write(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    process.stdin.flush()


# -- the table


@dataclass(frozen=True)
class Opening:
    """One way to a first answer. `what` is opened, `how`: bare, or through which program."""

    what: str
    how: str
    open: Callable[[], float]


@contextlib.contextmanager
def _own(place: Place) -> Iterator[list[Opening]]:
    """Each server, bare and through the gateway, for both eras."""
    with contextlib.ExitStack() as stack:
        openings = []
        for name, command in servers().items():
            entry = {"command": command[0], "args": list(command[1:])}
            url, _ = stack.enter_context(served(place.gateway(servers={"it": entry})))
            eras = ("legacy",) if name == "Node SDK" else ("legacy", "modern")  # it speaks the legacy era only
            for era in eras:
                openings.append(Opening(f"{name}, {era} client", "bare", partial(bare, command, era)))
                through = legacy_open if era == "legacy" else _modern_open
                openings.append(Opening(f"{name}, {era} client", "gateway", partial(through, url)))
        yield openings


@contextlib.contextmanager
def _beside(place: Place) -> Iterator[list[Opening]]:
    """The same server, bare, through the gateway, and through the peers that serve legacy clients with sessions."""
    with contextlib.ExitStack() as stack:
        what = "echo in C, legacy client"
        openings = [Opening(what, "bare", partial(bare, (str(echo_server()),), "legacy"))]
        for row in peers(place):
            if row.load.era == "legacy":
                url, _ = stack.enter_context(served(row.subject))
                openings.append(Opening(what, row.name, partial(legacy_open, url)))
        yield openings


def measure(openings: Sequence[Opening], rounds: int) -> dict[Opening, list[float]]:
    """Milliseconds of each opening. They take turns."""
    found: dict[Opening, list[float]] = {opening: [] for opening in openings}
    for number in range(rounds + 1):
        for opening, times in found.items():
            time.sleep(_SETTLE_S)
            took = opening.open()
            if number:  # in the first round files are read and eras found out
                times.append(took)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--peers", action="store_true", help="beside other gateways")
    options = parser.parse_args()
    table = Table("first answer", "through", "p50 ms", "lowest ms", "surplus ms", "of bare", box=None)
    with running_redis() as redis, tempfile.TemporaryDirectory() as folder:
        with (_beside if options.peers else _own)(Place(Path(folder), redis.url)) as openings:
            found = measure(openings, options.rounds)
    spawned: list[float] = []
    for opening, times in found.items():
        spawned = times if opening.how == "bare" else spawned
        surplus = statistics.median(b - a for a, b in zip(spawned, times, strict=True))
        ratio = statistics.median(b / a for a, b in zip(spawned, times, strict=True))
        figures = (statistics.median(times), min(times), surplus)
        table.add_row(opening.what, opening.how, *(f"{figure:.1f}" for figure in figures), f"{ratio:.2f}")
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
