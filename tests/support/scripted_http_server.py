"""An MCP server on HTTP that does what a test says: each message is answered by a function, and recorded."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.asgi import body_of, served

__all__ = ["Reply", "ScriptedServer", "Seen", "discovered", "event", "result_of", "running_scripted_server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request. `body` is the decoded message, or None."""

    method: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response. With `events` it is an event stream of these texts, which stays open if `holds`."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    holds: bool = False


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
        for text in reply.events:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        if reply.holds:
            await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.append((seen.body or {}).get("id"))
            return
        out = b"" if reply.body is None else json.dumps(reply.body).encode()
        await send({"type": "http.response.body", "body": out})


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
