"""Agents that use a configuration as its user would: over HTTP, or by starting `mcp-session-gateway stdio`."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import httpx

from tests.support.commands import start_command
from tests.support.gateway_process import ROOT, RunningGateway
from tests.support.mcp_clients import Legacy, messages
from tests.support.stdio_client import Typed

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
        self._client = Typed("--config", str(config), *arguments, env=environment(**env), child=())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self._client.end()
        assert kind is not None or code == 0, self.log()

    def open(self, *, meta: Any = None, name: str = "raw") -> Self:
        assert "result" in self._client.initialize(name=name, **({"_meta": meta} if meta is not None else {}))
        return self

    def call(self, method: str, params: Any = None) -> Message:
        answer: Message = self._client.ask(method, params)
        return answer

    def tool(self, name: str, arguments: Any = None) -> Message:
        return self.call("tools/call", {"name": name, "arguments": arguments or {}})

    def log(self) -> str:
        return self._client.log()


def opener(gateway: RunningGateway, http: httpx.Client) -> Open:
    """Opens sessions of that gateway over HTTP."""

    def open_session(*, meta: Any = None, key: str = "", name: str = "raw") -> HttpAgent:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return HttpAgent(gateway, Legacy(gateway.url, http, headers=headers).open(meta=meta, name=name))

    return open_session
