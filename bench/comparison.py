"""What peers do with sessions: `python -m bench.comparison` tries it, and prints the table of docs/comparison.md.

Each peer is started as its documentation says, in front of the demo server, whose tool `count` counts in its process.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from bench.peers import FASTMCP, MCP_PROXY, SUPERGATEWAY
from bench.subjects import ROOT
from tests.support.free_ports import free_port
from tests.support.mcp_clients import Legacy, modern_body, modern_headers, tool_text
from tests.tools.obtain import node, npm_packages, python_with

DEMO: Final = (sys.executable, "-m", "gateway", "demo-server")
_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway: its name with its version, and the command that serves the demo server at a port."""

    name: str
    command: Callable[[int, Path], list[str]]


def _peers(folder: Path) -> list[Peer]:
    server = folder / "demo"
    server.write_text(f"#!/bin/sh\nexec {' '.join(DEMO)}\n", encoding="utf-8")
    server.chmod(0o755)
    script = npm_packages(SUPERGATEWAY) / "node_modules/supergateway/dist/index.js"
    stateful = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]
    proxy, fastmcp = python_with(MCP_PROXY).parent / "mcp-proxy", python_with(FASTMCP)
    return [
        Peer(
            "MCP Session Gateway",
            lambda port, folder: [
                *(sys.executable, "-m", "gateway", "run", "--port", str(port)),
                *("--store", f"sqlite:///{folder}/sessions.db", "--", *DEMO),
            ],
        ),
        Peer(
            "supergateway, stateful",
            lambda port, folder: [str(node()), str(script), "--stdio", str(server), *stateful, "--port", str(port)],
        ),
        Peer(
            "mcp-proxy",
            lambda port, folder: [str(proxy), "--port", str(port), "--log-level", "ERROR", "--", str(server)],
        ),
        Peer(
            "FastMCP proxy",
            lambda port, folder: [str(fastmcp), str(ROOT / "bench/subjects/fastmcp_proxy.py"), str(port), str(server)],
        ),
    ]


class Running:
    """A peer that serves, which can be ended and started again at the same address."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            self.peer.command(self.port, self._folder),
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until:
            try:
                httpx.get(self.url, timeout=2)
                return
            except httpx.ReadTimeout:
                return  # the GET is a stream
            except httpx.HTTPError:
                time.sleep(0.1)
        raise RuntimeError(f"{self.peer.name} does not answer")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _own_process(running: Running) -> bool:
    """Whether what one client's calls leave in the server's memory is unknown to another client."""
    with httpx.Client(timeout=20) as one, httpx.Client(timeout=20) as two:
        first, second = Legacy(running.url, one).open(), Legacy(running.url, two).open()
        counts = [tool_text(first.tool("count")), tool_text(first.tool("count")), tool_text(second.tool("count"))]
    return [count[-1] for count in counts] == ["1", "2", "1"]


def _survives(running: Running) -> bool:
    """Whether a client goes on with its session after its gateway was killed and started again."""
    with httpx.Client(timeout=20) as http:
        client = Legacy(running.url, http).open()
        client.tool("count")
        running.kill()
        running.start()
        return _works(lambda: client.tool("count"))


def _serves_modern(running: Running) -> bool:
    """Whether a 2026-07-28 client is served, without a handshake."""
    with httpx.Client(timeout=20) as http:
        return _works(lambda: _modern_count(running, http))


def _modern_session(running: Running) -> bool:
    """Whether 2026-07-28 clients that keep what they are given, each find their own session again."""
    with httpx.Client(timeout=20) as one, httpx.Client(timeout=20) as two:
        counts = [
            tool_text(_modern_count(running, http)) if _serves_modern(running) else "" for http in (one, one, two)
        ]
    return [count[-1:] for count in counts] == ["1", "2", "1"]


def _modern_count(running: Running, http: httpx.Client) -> httpx.Response:
    body = modern_body("tools/call", {"name": "count", "arguments": {}})
    headers = {**modern_headers(body), "Accept": "application/json, text/event-stream"}
    return http.post(running.url, json=body, headers=headers)


def _works(call: Callable[[], httpx.Response]) -> bool:
    try:
        answer = call()
        return answer.status_code == 200 and bool(tool_text(answer))
    except (httpx.HTTPError, LookupError, ValueError, AssertionError):
        return False


def _ends(running: Running) -> bool:
    """Whether the server's process has ended two seconds after its session was deleted, where it has one of its own."""
    with httpx.Client(timeout=20) as http:
        client = Legacy(running.url, http).open()
        client.tool("count")
        before = _servers()
        client.delete()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            if len(_servers()) < len(before):
                return True
            time.sleep(0.05)
    return False


def _servers() -> set[int]:
    """Processes of the demo server."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"demo-server" in words and b"run" not in words and b"--stdio" not in words and b"--" not in words:
                found.add(int(path.name))
    return found


QUESTIONS: Final[Mapping[str, Callable[[Running], bool]]] = {
    "each session has its own server process": _own_process,
    "the process ends with its session": _ends,
    "2026-07-28 clients are served": _serves_modern,
    "a 2026-07-28 client finds its session again": _modern_session,
    "a session goes on after the gateway was killed": _survives,
}


def compared() -> str:
    """The table, as Markdown."""
    rows: dict[str, list[str]] = {question: [] for question in QUESTIONS}
    names = []
    with TemporaryDirectory() as shared:
        for peer in _peers(Path(shared)):
            names.append(peer.name)
            for question, try_it in QUESTIONS.items():
                rows[question].append(_answered(peer, try_it))
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    return "\n".join([*lines, *(f"| {question} | {' | '.join(cells)} |" for question, cells in rows.items())])


def _answered(peer: Peer, try_it: Callable[[Running], bool]) -> str:
    with TemporaryDirectory() as folder:
        running = Running(peer, Path(folder))
        try:
            running.start()
            return "yes" if try_it(running) else "no"
        finally:
            running.kill()


if __name__ == "__main__":
    sys.stdout.write(compared() + "\n")
