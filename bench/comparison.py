"""What peers do with sessions: `python -m bench.comparison` tries it, and prints the table of docs/comparison.md.

Each peer is started as its documentation says, in front of the demo server, whose tool `count` counts in its process.
"""

import functools
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from bench.peers import CONTEXTFORGE, FASTMCP, HANGAR, MCP_PROXY, SUPERGATEWAY
from bench.subjects import ROOT
from tests.support.free_ports import free_port
from tests.support.mcp_clients import Legacy, modern_body, modern_headers, tool_text
from tests.tools.obtain import node, npm_packages, python_with

DEMO: Final = (sys.executable, "-m", "gateway", "demo-server")
_WAIT_S: Final = 120.0  # ContextForge makes its database first


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway: its name with its version, the command that serves the demo server at a port, and how the tool `count`
    is called there."""

    name: str
    command: Callable[[int, Path], list[str]]
    tool: str = "count"
    arguments: Mapping[str, object] = field(default_factory=dict)
    needs_token: bool = False
    """Whether its command writes a token for its clients to the file `token`, as the last thing before it serves."""


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
        Peer(
            "MCP Hangar",
            functools.partial(_hangar, python_with(HANGAR).parent / "mcp-hangar", server),
            tool="hangar_call",
            arguments={"calls": [{"mcp_server": "demo", "tool": "count", "arguments": {}}]},
        ),
        Peer(
            "ContextForge",
            functools.partial(_contextforge, python_with(CONTEXTFORGE), server, secrets.token_urlsafe(40)),
            tool="demo-count",
            needs_token=True,
        ),
    ]


def _hangar(program: Path, server: Path, port: int, folder: Path) -> list[str]:
    config = folder / "config.yaml"
    config.write_text(f"mcp_servers:\n  demo:\n    mode: subprocess\n    command: [{server}]\n", encoding="utf-8")
    return [str(program), "serve", "--config", str(config), "--http", "--port", str(port)]


def _contextforge(python: Path, server: Path, secret: str, port: int, folder: Path) -> list[str]:
    return [str(python), str(ROOT / "bench/subjects/contextforge.py"), str(port), str(folder), str(server), secret]


class Running:
    """A peer that serves, which can be ended and started again at the same address."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._folder = folder
        self._headers: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            self.peer.command(self.port, self._folder),
            env=env,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + _WAIT_S
        while time.monotonic() < until:
            try:
                httpx.get(self.url, timeout=2)
                break
            except httpx.ReadTimeout:
                break  # the GET is a stream
            except httpx.HTTPError:
                time.sleep(0.1)
        token = self._folder / "token"
        while self.peer.needs_token and not token.exists() and time.monotonic() < until:
            time.sleep(0.1)
        if time.monotonic() >= until:
            raise RuntimeError(f"{self.peer.name} does not answer")
        self._headers = {"Authorization": f"Bearer {token.read_text()}"} if self.peer.needs_token else {}

    def client(self) -> httpx.Client:
        """An HTTP client with the credential that the peer asks for."""
        return httpx.Client(timeout=20, headers=self._headers, follow_redirects=True)

    def opened(self, http: httpx.Client) -> Legacy:
        """A client that has finished its handshake. Not each peer gives it a session."""
        client = Legacy(self.url, http)
        assert client.initialize().status_code == 200
        client.notify("notifications/initialized")
        return client

    def count(self, client: Legacy) -> httpx.Response:
        """Call the tool that counts its calls."""
        return client.tool(self.peer.tool, self.peer.arguments)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _own_process(running: Running) -> bool:
    """Whether what one client's calls leave in the server's memory is unknown to another client."""
    with running.client() as one, running.client() as two:
        first, second = running.opened(one), running.opened(two)
        counts = [_counted(running.count(client)) for client in (first, first, second)]
    return counts == ["1", "2", "1"]


def _counted(answer: httpx.Response) -> str:
    """The number in an answer. MCP Hangar wraps results in an object of its own."""
    text = tool_text(answer)
    wrapped = re.search(r'"text": "(\d+)"', text)
    return (wrapped[1] if wrapped else text)[-1:]


def _survives(running: Running) -> bool:
    """Whether a client goes on with its session after its gateway was killed and started again."""
    with running.client() as http:
        client = running.opened(http)
        running.count(client)
        running.kill()
        running.start()
        return bool(client.session) and _works(lambda: running.count(client))


def _serves_modern(running: Running) -> bool:
    """Whether a 2026-07-28 client is served, without a handshake."""
    with running.client() as http:
        return _works(lambda: _modern_count(running, http))


def _modern_session(running: Running) -> bool:
    """Whether 2026-07-28 clients that keep what they are given, each find their own session again."""
    if not _serves_modern(running):
        return False
    with running.client() as one, running.client() as two:
        return [_counted(_modern_count(running, http)) for http in (one, one, two)] == ["1", "2", "1"]


def _modern_count(running: Running, http: httpx.Client) -> httpx.Response:
    body = modern_body("tools/call", {"name": running.peer.tool, "arguments": running.peer.arguments})
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
    with running.client() as http:
        client = running.opened(http)
        running.count(client)
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
