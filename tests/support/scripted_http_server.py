"""MCP servers on HTTP that do what a test says: each message is answered by a function, and recorded.

They run in a thread of the test's own process, so that it can read their records and change their answers.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.asgi import body_of, served
from tests.support.stdio_server import text, tools

DEEP = "[" * 5_000 + "NaN" + "]" * 5_000
"""Unreadable: nested too deeply, and no JSON for a Python that reads so many levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request. `body` is the decoded message, or None."""

    method: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response. With `events` it is an event stream of these texts, which stays open if `holds`.

    `text` is a body that is no JSON. With `drips` the body comes in pieces of that size, and with `breaks` not whole.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    holds: bool = False
    text: str = ""
    drips: int = 0
    breaks: bool = False


class ScriptedServer:
    """The ASGI app. `seen` has every request in its order, `left` the ids of calls whose client went away."""

    def __init__(self, script: Callable[[Seen], Reply]) -> None:
        self.script = script
        self.url = ""
        self.seen: list[Seen] = []
        self.left: list[Any] = []

    def posted(self, method: str) -> list[Seen]:
        """The requests with that JSON-RPC method."""
        return [seen for seen in self.seen if isinstance(seen.body, dict) and seen.body.get("method") == method]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await body_of(receive)
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        seen = Seen(method=scope["method"], headers=headers, body=json.loads(body) if body else None)
        self.seen.append(seen)
        reply = self.script(seen)
        kind = "text/event-stream" if reply.events or reply.holds else "application/json"
        head = {"content-type": kind, **reply.headers}
        raw = [(name.encode(), value.encode()) for name, value in head.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        for each in reply.events:
            await send({"type": "http.response.body", "body": each.encode(), "more_body": True})
        if reply.holds:
            await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.append((seen.body or {}).get("id"))
            return
        out = reply.text.encode() if reply.body is None else json.dumps(reply.body).encode()
        if reply.breaks:
            await send({"type": "http.response.body", "body": out, "more_body": True})
            raise ConnectionResetError
        for place in range(0, len(out) if reply.drips else 0, reply.drips or 1):
            await send({"type": "http.response.body", "body": out[place : place + reply.drips], "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"" if reply.drips else out})


def event(message: Any, event_id: str = "") -> str:
    """A message as an event of a stream."""
    return (f"id: {event_id}\n" if event_id else "") + f"data: {json.dumps(message)}\n\n"


def result_of(seen: Seen, result: Any) -> Any:
    """The response to a request."""
    return {"jsonrpc": "2.0", "id": seen.body["id"], "result": result}


def discovered(**capabilities: Any) -> Any:
    """The result of `server/discover` of a modern server."""
    return {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, **capabilities},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
        "ttlMs": 0,
        "cacheScope": "private",
    }


@contextlib.contextmanager
def running_scripted_server(script: Callable[[Seen], Reply]) -> Iterator[ScriptedServer]:
    """The server in a thread of this process."""
    server = ScriptedServer(script)
    with served(server) as server.url:
        yield server


class HttpProbe(ScriptedServer):
    """A legacy server that keeps sessions, and misbehaves on request.

    `sessions`: session id → number of tool calls. `deleted`: ids of DELETE requests. `executed`: names of the tools
    called. `answer_with`: the status of every response; 0 for normal responses. `gets`: the statuses of the next GET
    requests, one after the other; 405 without any. 200 is a stream with one notification of a changed list.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.sessions: dict[str, int] = {}
        self.deleted: list[str] = []
        self.executed: list[str] = []
        self.answer_with = 0
        self.gets: list[int] = []

    @property
    def headers(self) -> list[dict[str, str]]:
        """Those of every request."""
        return [seen.headers for seen in self.seen]

    def _answer(self, seen: Seen) -> Reply:
        session = seen.headers.get("mcp-session-id", "")
        if seen.method == "DELETE":
            self.deleted.append(session)
            return Reply()
        if seen.method == "GET":
            status = self.gets.pop(0) if self.gets else 405
            changed = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            return Reply(status=status, events=(f"retry: 200\n{changed}",) if status == 200 else ())
        if self.answer_with:
            return Reply(status=self.answer_with, text="go away", headers={"content-type": "text/plain"})
        return self._post(seen, session)

    def _post(self, seen: Seen, session: str) -> Reply:
        method = seen.body.get("method")
        if seen.headers.get("mcp-protocol-version") == "2026-07-28":
            return _refused(400, None, "Bad Request: unsupported protocol version")
        if method == "initialize":
            session = secrets.token_hex(8)
            self.sessions[session] = 0
            info = {"serverInfo": {"name": "http-probe", "version": "1"}, "capabilities": {"tools": {}}}
            result = result_of(seen, {"protocolVersion": "2025-11-25", **info})
            return Reply(body=result, headers={"mcp-session-id": session, "set-cookie": f"who={session}; Path=/"})
        if session not in self.sessions:
            return _refused(404, seen.body.get("id"), "Session not found")
        if "id" not in seen.body:
            return Reply(status=202)
        if method == "ping":
            return Reply(body=result_of(seen, {}))
        if method == "tools/list":
            return Reply(body=result_of(seen, tools("count", "echo", "reset", "drip", "broken")))
        return self._call(seen, session)

    def _call(self, seen: Seen, session: str) -> Reply:
        name, arguments = seen.body["params"]["name"], seen.body["params"].get("arguments", {})
        self.executed.append(name)
        self.sessions[session] += 1
        if name == "broken":
            line = arguments["line"].replace("ID", str(seen.body["id"])).replace("DEEP", DEEP)
            if arguments["kind"] == "text/event-stream":
                return Reply(events=(f"data: {line}\n\n",), holds=True)
            return Reply(text=line, headers={"content-type": arguments["kind"]})
        if name == "reset":
            return Reply(text='{"jsonrpc"', headers={"content-length": "100"}, breaks=True)
        said = arguments.get("text", "") if name == "echo" else str(self.sessions[session])
        return Reply(body=result_of(seen, text(said)), drips=20 if name == "drip" else 0)


def _refused(status: int, request_id: Any, why: str) -> Reply:
    return Reply(status=status, body={"jsonrpc": "2.0", "id": request_id, "error": {"code": -32600, "message": why}})


@contextlib.contextmanager
def running_http_probe() -> Iterator[HttpProbe]:
    """The probe in a thread of this process."""
    probe = HttpProbe()
    with served(probe) as probe.url:
        yield probe
