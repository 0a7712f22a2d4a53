"""A legacy MCP server on HTTP for tests: keeps sessions, records its requests, and misbehaves on request."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

from tests.support.asgi import body_of, respond, served

__all__ = ["HttpProbe", "running_http_probe"]

DEEP = "[" * 5_000 + "NaN" + "]" * 5_000
"""Unreadable: nested too deeply, and no JSON for a Python that reads so many levels."""


class HttpProbe:
    """The ASGI app and its record of requests.

    `sessions`: session id → number of tool calls. `deleted`: ids of DELETE requests. `headers`: of every request.
    `executed`: names of the tools called. `answer_with`: the status of every response; 0 for normal responses.
    `gets`: the statuses of the next GET requests, one after the other; 405 without any. 200 is a stream with one
    notification of a changed list.
    """

    def __init__(self) -> None:
        self.url = ""
        self.sessions: dict[str, int] = {}
        self.deleted: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.executed: list[str] = []
        self.answer_with = 0
        self.gets: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        session = headers.get("mcp-session-id", "")
        self.headers.append(headers)
        if scope["method"] == "DELETE":
            self.deleted.append(session)
            await respond(send, 200)
        elif scope["method"] == "GET":
            status = self.gets.pop(0) if self.gets else 405
            if status == 200:
                changed = b'retry: 200\ndata: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
                await respond(send, status, changed, kind="text/event-stream")
            else:
                await respond(send, status)
        elif self.answer_with:
            await respond(send, self.answer_with, b"go away", kind="text/plain")
        else:
            await self._post(json.loads(await body_of(receive)), headers, session, send)

    async def _post(self, message: Any, headers: dict[str, str], session: str, send: Any) -> None:
        method = message.get("method")
        if headers.get("mcp-protocol-version") == "2026-07-28":
            await self._error(send, 400, None, -32600, "Bad Request: unsupported protocol version")
        elif method == "initialize":
            session = secrets.token_hex(8)
            self.sessions[session] = 0
            info = {"serverInfo": {"name": "http-probe", "version": "1"}, "capabilities": {"tools": {}}}
            await self._result(send, message, {"protocolVersion": "2025-11-25", **info}, session)
        elif session not in self.sessions:
            await self._error(send, 404, message.get("id"), -32600, "Session not found")
        elif "id" not in message:
            await respond(send, 202)
        elif method == "ping":
            await self._result(send, message, {})
        elif method == "tools/list":
            tools = [
                {"name": name, "inputSchema": {"type": "object"}}
                for name in ("count", "echo", "reset", "drip", "broken")
            ]
            await self._result(send, message, {"tools": tools})
        else:
            await self._call(message, session, send)

    async def _call(self, message: Any, session: str, send: Any) -> None:
        name, arguments = message["params"]["name"], message["params"].get("arguments", {})
        self.executed.append(name)
        self.sessions[session] += 1
        if name == "broken":
            head = [(b"content-type", arguments["kind"].encode())]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            line = arguments["line"].replace("ID", str(message["id"])).replace("DEEP", DEEP)
            # As a stream it stays open; as a body it ends.
            more = arguments["kind"] == "text/event-stream"
            body = f"data: {line}\n\n" if more else line
            await send({"type": "http.response.body", "body": body.encode(), "more_body": more})
            await asyncio.sleep(20 if more else 0)
            return
        if name == "reset":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
            await send({"type": "http.response.body", "body": b'{"jsonrpc"', "more_body": True})
            raise ConnectionResetError
        text = arguments.get("text", "") if name == "echo" else str(self.sessions[session])
        result = {"content": [{"type": "text", "text": text}]}
        if name == "drip":
            await self._drip(send, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
        else:
            await self._result(send, message, result)

    async def _drip(self, send: Any, body: bytes) -> None:
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for place in range(0, len(body), 20):
            await send({"type": "http.response.body", "body": body[place : place + 20], "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})

    async def _result(self, send: Any, message: Any, result: Any, session: str = "") -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        await respond(send, 200, body, session=session)

    async def _error(self, send: Any, status: int, request_id: Any, code: int, text: str) -> None:
        error = {"code": code, "message": text}
        await respond(send, status, json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode())


@contextlib.contextmanager
def running_http_probe() -> Iterator[HttpProbe]:
    """The server in a thread of this process, so that a test can read its record."""
    probe = HttpProbe()
    with served(probe) as probe.url:
        yield probe
