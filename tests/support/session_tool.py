"""Tools that use `current_session()`, served by the SDK, by FastAPI and as a stdio child, to compare what they see."""

import asyncio
import json
import sys
from typing import Any

from session_store import InvalidMetadata
from session_store.context import MISSING, current_session

__all__ = ["visit"]


async def visit(name: str, pause_s: float = 0.0) -> str:
    """Record a visit in the session's state; returns workspace, visits and names as JSON."""
    session = current_session()
    before = await session.state.get("names", [])
    await asyncio.sleep(pause_s)
    while not await session.state.compare_and_set("names", before or MISSING, [*before, name]):
        before = await session.state.get("names", [])
    count = await session.state.increment("visits")
    return json.dumps(
        {
            "workspace": current_session().context.workspace,
            "same": current_session().id == session.id,
            "visits": count,
            "names": await session.state.get("names"),
        },
        sort_keys=True,
    )


async def bump(key: str) -> str:
    """Increment a key of the session's state and return the new value."""
    return str(await current_session().state.increment(key))


async def annotate(name: str, value: str) -> str:
    """Write metadata of the session; returns all of it as JSON, or why it was refused."""
    try:
        await current_session().annotate({name: value})
    except (PermissionError, InvalidMetadata) as error:
        return f"refused: {error}"
    return json.dumps(dict(await current_session().metadata()), sort_keys=True)


async def times() -> str:
    """What the session says of its times, credential and call, as JSON."""
    session = current_session()
    facts = (session.created_at, await session.last_active_at(), session.idle_ttl_s, session.max_age_s)
    return json.dumps([*facts, session.token_hash, session.correlation_id])


def blocking_whoami() -> str:
    """A tool that is no coroutine, so that the SDK runs it in a thread; returns the workspace."""
    return current_session().context.workspace


def __getattr__(name: str) -> Any:
    """The SDK's server, which takes a while to load, is made when it is asked for."""
    if name != "server":
        raise AttributeError(name)
    from mcp.server import MCPServer

    made: Any = MCPServer("session-tool")
    for tool in (visit, bump, annotate, blocking_whoami, times):
        made.tool()(tool)
    globals()[name] = made
    return made


TOOLS: dict[str, Any] = {"visit": visit, "bump": bump, "annotate": annotate, "times": times}


async def serve_stdio() -> None:
    """A server as small as can be: both eras, one task for each call."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    calls = set()
    info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "tool", "version": "1"}}

    async def answer(message: Any) -> None:
        method, params = message["method"], message.get("params", {})
        if method == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], **info}
        elif method == "initialize":
            result = {"protocolVersion": "2025-11-25", **info}
        elif method == "tools/call":
            text = await TOOLS[params["name"]](**params["arguments"])
            result = {"content": [{"type": "text", "text": text}]}
        else:
            result = {"tools": []}
        result = {"resultType": "complete", **result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()

    while line := await reader.readline():
        message = json.loads(line)
        if "id" in message:
            task = asyncio.create_task(answer(message))
            calls.add(task)
            task.add_done_callback(calls.discard)


if __name__ == "__main__":
    asyncio.run(serve_stdio())
