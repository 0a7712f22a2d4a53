"""What is sent to a subject, and what it did: sessions are opened by hand, calls are made by wrk, httpx or fetch."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import msgspec
import psutil

from tests.support.mcp_clients import ACCEPT, Legacy, Modern, messages
from tests.tools.obtain import node
from tests.tools.programs import program

Client = Literal["wrk", "httpx", "fetch"]
HERE = Path(__file__).parent
CONNECTIONS: Final = 32
INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
CALL: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}


class Run(msgspec.Struct, kw_only=True):
    """One measurement. `cpu_s`: seconds of CPU for 1,000 calls, `memory_mb`: of the subject's processes, servers left
    out."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_s: float
    memory_mb: float
    errors: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """The calls of one row: of which era, to which tools, and how large."""

    era: str = "legacy"
    tools: Sequence[str] = ("echo",)
    arguments: dict[str, Any] = field(default_factory=lambda: {"text": "hello"})
    progress: bool = False
    key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    traced: bool = False  # a `traceparent` of its own on each call
    client: Client = "wrk"
    connections: int = CONNECTIONS
    stateless: bool = False  # a subject that knows no sessions
    path: str = "/mcp"
    idle: int = 0  # so many sessions more, which made one call each
    idle_path: str = ""
    visits: bool = False  # of an app, with a cookie: no MCP

    def body(self, tool: str) -> dict[str, Any]:
        meta: dict[str, Any] = {"progressToken": 1} if self.progress else {}
        if self.era == "modern":
            meta |= {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        params: dict[str, Any] = {"name": tool, "arguments": self.arguments} | ({"_meta": meta} if meta else {})
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    @property
    def _carrier(self) -> str:
        if self.visits:
            return "Cookie"
        return "MCP-Gateway-Session" if self.era == "modern" else "Mcp-Session-Id"

    def _headers(self) -> dict[str, str]:
        """Those that all sessions send."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28" if self.era == "modern" else "2025-11-25",
        }
        if self.era == "modern":
            headers["Mcp-Method"] = "tools/call"
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return headers | dict(self.headers)

    def _of_session(self, number: int, token: str) -> dict[str, Any]:
        tool = self.tools[number % len(self.tools)]
        named = {"Mcp-Name": tool} if self.era == "modern" else {}
        return {"headers": {**self._headers(), self._carrier: token, **named}, "body": self.body(tool)}

    def write(self, file: Path, sessions: Sequence[str]) -> None:
        """What is sent: as a table of Lua's for wrk, else as JSON with the headers and the body of each session."""
        if self.client != "wrk":
            file.write_text(json.dumps([self._of_session(number, token) for number, token in enumerate(sessions)]))
            return
        headers = self._headers()
        parts = {
            "carrier": _quoted(self._carrier),
            "sessions": _listed(sessions),
            "headers": "{" + ",".join(f"[ {_quoted(k)} ]={_quoted(v)}" for k, v in headers.items()) + "}",
            "bodies": _listed([json.dumps(self.body(tool), separators=(",", ":")) for tool in self.tools]),
        }
        if self.era == "modern":
            parts["names"] = _listed(self.tools)
        if self.traced:
            parts["traced"] = "true"
        file.write_text("return {" + ",".join(f"{name}={part}" for name, part in parts.items()) + "}")


def _quoted(text: str) -> str:
    return f"[==[{text}]==]"


def _listed(texts: Sequence[str]) -> str:
    return "{" + ",".join(map(_quoted, texts)) + "}"


def opened(url: str, load: Load) -> list[str]:
    """The tokens of as many sessions as there are connections; one call of each gives a right answer."""
    if load.visits:
        answers = [httpx.post(url, timeout=60) for _ in range(load.connections)]
        return [answer.headers["set-cookie"].partition(";")[0] for answer in answers]
    headers = {"Authorization": f"Bearer {load.key}"} if load.key else {}
    tokens = []
    with httpx.Client(timeout=60) as http:
        for number in range(load.connections):
            tool = load.tools[number % len(load.tools)]
            http.cookies.clear()
            if load.era == "modern":
                answer = Modern(url, http, headers=headers).tool(tool, load.arguments)
                tokens.append(answer.headers.get("mcp-gateway-session", "none"))
            else:
                client = Legacy(url, http, headers=headers)
                first = client.initialize()
                assert first.status_code == 200, first.text
                client.notify("notifications/initialized")
                answer = client.tool(tool, load.arguments)
                tokens.append(client.session or "none")
            last = messages(answer)[-1]
            assert "result" in last, last
            text = last["result"]["content"][0]["text"]
            assert len(text) == load.arguments.get("size", len(text)), "not what was asked for"
            assert load.stateless or tokens[-1] != "none"
    return tokens


async def open_many(url: str, count: int) -> list[str]:
    """So many sessions, sixteen at a time, each with a call made; their tokens."""
    limits = httpx.Limits(max_connections=16)
    gate = asyncio.Semaphore(16)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:

        async def one() -> str:
            async with gate:
                first = await http.post(url, json=INITIALIZE, headers=ACCEPT)
                token = first.headers["mcp-session-id"]
                answer = await http.post(url, json=CALL, headers={**ACCEPT, "Mcp-Session-Id": token})
                assert answer.json()["result"]["content"][0]["text"] == "ok", answer.text
                http.cookies.clear()
                return token

        return list(await asyncio.gather(*(one() for _ in range(count))))


def measured(
    url: str,
    file: Path,
    seconds: float,
    process: psutil.Process,
    connections: int = CONNECTIONS,
    client: Client = "wrk",
) -> Run:
    """One run of that client, and what it cost the subject."""
    match client:
        case "wrk":
            command = [str(program("wrk", "wrk")), f"-t{connections}", f"-c{connections}", f"-d{seconds:g}s"]
            command += ["--latency", "--timeout", "30s", "-s", str(HERE / "load.lua"), url, "--", str(file)]
        case "httpx":
            command = [sys.executable, str(HERE / "httpx_load.py"), url, str(file), str(seconds)]
        case "fetch":
            command = [str(node()), str(HERE / "fetch_load.mjs"), url, str(file), str(seconds)]
    before = _cpu(process)
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spent = _cpu(process) - before
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return Run(
        rate=found["requests"] / found["duration_us"] * 1e6,
        p50_ms=found["p50_us"] / 1_000,
        p99_ms=found["p99_us"] / 1_000,
        cpu_s=spent / max(1, found["requests"]) * 1_000,
        memory_mb=_memory(process),
        errors=found["errors"],
    )


def _own(process: psutil.Process) -> list[psutil.Process]:
    """The subject's processes, but for the servers behind it."""
    own = [process]
    for child in process.children(recursive=True):
        try:
            if child.name() != "echo" and child.memory_info().rss:
                own.append(child)
        except psutil.NoSuchProcess:
            continue
    return own


def _cpu(process: psutil.Process) -> float:
    total = 0.0
    for own in _own(process):
        with contextlib.suppress(psutil.NoSuchProcess):  # a reaper that ended with its server
            times = own.cpu_times()
            total += times.user + times.system
    return total


def _memory(process: psutil.Process) -> float:
    total = 0.0
    for own in _own(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += own.memory_full_info().uss
    return total / 1e6
