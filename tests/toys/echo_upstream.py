"""An upstream kind as another package would bring it: a server that is a few lines of this file, one per link."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from transports.jsonrpc import parse
from transports.upstream_port import ConnectOptions, LinkClosed, LinkEvents

Write = Callable[[bytes], None]


class OwnLink:
    """A link to a server in this process. `handle` gets each frame and what writes to the gateway, in a later turn of
    the event loop, as every upstream answers."""

    pid = None
    output_tail: list[str] = []  # noqa: RUF012  # a link has no process
    resume = ""
    may_forget = False

    def __init__(self, handle: Callable[[bytes, Write], None], events: LinkEvents) -> None:
        self._handle = handle
        self._events = events
        self._is_closed = False

    def stderr_tail(self) -> list[str]:
        return []

    def send(self, frame: bytes) -> None:
        if self._is_closed:
            raise LinkClosed("the link is closed")
        asyncio.get_running_loop().call_soon(self._handle, frame, self.write)

    def write(self, frame: bytes) -> None:
        if not self._is_closed:
            self._events.message(parse(frame))

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._events.closed("the link was closed")


class EchoUpstream:
    """Opens links to a server that echoes."""

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> OwnLink:
        return OwnLink(EchoServer().handle, events)

    async def close(self) -> None:
        """Its links share nothing."""


class EchoServer:
    """The server of one link."""

    def __init__(self) -> None:
        self._calls = 0

    def handle(self, frame: bytes, write: Write) -> None:
        message = json.loads(frame)
        if "id" in message and "method" in message:
            outcome = self._outcome(message["method"], message.get("params"))
            write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode())

    def _outcome(self, method: str, params: Any) -> dict[str, Any]:
        match method:
            case "initialize":
                server = {"name": "echo", "version": "1"}
                known = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
                return {"result": known | {"serverInfo": server}}
            case "ping":
                return {"result": {}}
            case "tools/list":
                tool = {"name": "echo", "description": "Answers with its text.", "inputSchema": {"type": "object"}}
                return {"result": {"tools": [tool]}}
            case "tools/call":
                self._calls += 1
                text = f"{self._calls}: {params['arguments']['text']}"
                return {"result": {"content": [{"type": "text", "text": text}]}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}


upstream = EchoUpstream()
