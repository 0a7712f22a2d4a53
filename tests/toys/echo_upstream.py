"""An upstream kind as another package would bring it: a server that is a few lines of this file, one per link."""

import asyncio
import json
from typing import Any

from transports.jsonrpc import parse
from transports.upstream_port import ConnectOptions, LinkClosed, LinkEvents

__all__ = ["EchoLink", "EchoUpstream", "upstream"]

_TOOL = {"name": "echo", "description": "Answers with its text.", "inputSchema": {"type": "object"}}


class EchoUpstream:
    """Opens links to a server that echoes."""

    async def connect(self, given: ConnectOptions, events: LinkEvents) -> "EchoLink":
        return EchoLink(events)

    async def close(self) -> None:
        """Its links share nothing."""


class EchoLink:
    """One link. Answers in a later turn of the event loop, as every upstream does."""

    pid = None
    last_words: list[str] = []  # noqa: RUF012  # a link has no process
    resume = ""
    may_forget = False

    def __init__(self, events: LinkEvents) -> None:
        self._events = events
        self._is_closed = False
        self._calls = 0

    def stderr_tail(self) -> list[str]:
        return []

    def send(self, frame: bytes) -> None:
        if self._is_closed:
            raise LinkClosed("the link is closed")
        message = json.loads(frame)
        if "id" in message and "method" in message:
            asyncio.get_running_loop().call_soon(self._answer, message)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._events.closed("the link was closed")

    def _answer(self, message: Any) -> None:
        if not self._is_closed:
            answer = {"jsonrpc": "2.0", "id": message["id"], **self._outcome(message["method"], message.get("params"))}
            self._events.message(parse(json.dumps(answer).encode()))

    def _outcome(self, method: str, params: Any) -> dict[str, Any]:
        match method:
            case "initialize":
                server = {"name": "echo", "version": "1"}
                known = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
                return {"result": known | {"serverInfo": server}}
            case "ping":
                return {"result": {}}
            case "tools/list":
                return {"result": {"tools": [_TOOL]}}
            case "tools/call":
                self._calls += 1
                text = f"{self._calls}: {params['arguments']['text']}"
                return {"result": {"content": [{"type": "text", "text": text}]}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}


upstream = EchoUpstream()
