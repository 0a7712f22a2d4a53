"""Agents that use a configuration as its user would: over HTTP, or by starting `mcp-session-gateway stdio`."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import httpx

from tests.support.commands import start_command
from tests.support.gateway_process import ROOT, RunningGateway
from tests.support.mcp_clients import Legacy, messages

__all__ = [
    "Agent",
    "HttpAgent",
    "Open",
    "StdioAgent",
    "example",
    "failed_text",
    "opener",
    "refused_text",
    "serving",
    "text_of",
]

Message = dict[str, Any]


class Agent(Protocol):
    """A connected client with a session. `call` returns the answer to a request."""

    def call(self, method: str, params: Any = None) -> Message: ...

    def tool(self, name: str, arguments: Any = None) -> Message: ...

    def log(self) -> str:
        """What the gateway has written to stderr so far."""
        ...


def example(name: str) -> Path:
    """The configuration of an example."""
    return ROOT / "examples" / name / "mcp.json"


def environment(**more: str) -> dict[str, str]:
    """Variables of a gateway that runs an example: its `python` is that of the tests, its store in memory."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "MCP_GATEWAY_STORE": "memory://", **more}


def text_of(answer: Message) -> str:
    """The text of a tool's result. Fails if the answer is an error."""
    assert "result" in answer and not answer["result"].get("isError"), answer
    return str(answer["result"]["content"][0]["text"])


def refused_text(answer: Message) -> str:
    """The message of the JSON-RPC error with which a call was refused. Fails if the answer is a result."""
    assert "error" in answer, answer
    return str(answer["error"]["message"])


def failed_text(answer: Message) -> str:
    """The text of the result of a call that failed. Fails if the call was done, or if the answer is an error."""
    assert "result" in answer and answer["result"].get("isError") is True, answer
    return str(answer["result"]["content"][0]["text"])


def tools_of(agent: Agent) -> dict[str, Message]:
    """The listed tools by name."""
    return {tool["name"]: tool for tool in agent.call("tools/list")["result"]["tools"]}


@contextlib.contextmanager
def serving(config: Path, *arguments: str, **env: str) -> Iterator[RunningGateway]:
    """The gateway with that configuration on HTTP."""
    command = ["run", "--config", str(config), "--port", "0", *arguments]
    process = start_command(command, env=environment(**env))
    gateway = RunningGateway(process)
    try:
        gateway.wait_ready()
        yield gateway
    finally:
        if process.poll() is None:
            gateway.stop()


class HttpAgent:
    """A session over HTTP."""

    def __init__(self, gateway: RunningGateway, client: Legacy) -> None:
        self._gateway = gateway
        self.client = client

    def call(self, method: str, params: Any = None) -> Message:
        answer: Message = messages(self.client.call(method, params))[-1]
        return answer

    def tool(self, name: str, arguments: Any = None) -> Message:
        return self.call("tools/call", {"name": name, "arguments": arguments or {}})

    def log(self) -> str:
        return self._gateway.stderr()


Open = Callable[..., HttpAgent]
"""Opens a session: `open(meta=…, key=…, name=…)`."""


class StdioAgent:
    """A gateway of its own, on its stdin and stdout. Each `open` is a new session."""

    def __init__(self, config: Path, *arguments: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "stdio", "--config", str(config), *arguments],
            cwd=ROOT,
            env=environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self.end()
        assert kind is not None or code == 0, self.log()

    def open(self, *, meta: Any = None, name: str = "raw") -> Self:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
        assert "result" in self.call("initialize", params | ({"_meta": meta} if meta is not None else {}))
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def call(self, method: str, params: Any = None) -> Message:
        self._id += 1
        self._write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params or {}})
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message: Message = json.loads(line)  # every line is protocol
            if message.get("id") == self._id:
                return message
        raise AssertionError(f"the gateway has ended:\n{self.log()}")

    def tool(self, name: str, arguments: Any = None) -> Message:
        return self.call("tools/call", {"name": name, "arguments": arguments or {}})

    def log(self) -> str:
        return "".join(self._log)

    def end(self) -> int:
        """Close stdin; the exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(20)
        self._reader.join(5)
        self.process.stdout.close()
        return code

    def _write(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self._log.extend(stream)


def opener(gateway: RunningGateway, http: httpx.Client) -> Open:
    """Opens sessions of that gateway over HTTP."""

    def open_session(*, meta: Any = None, key: str = "", name: str = "raw") -> HttpAgent:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return HttpAgent(gateway, Legacy(gateway.url, http, headers=headers).open(meta=meta, name=name))

    return open_session
