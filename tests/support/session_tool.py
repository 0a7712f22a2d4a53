"""Tools that use `current_session()`, served by the SDK, by FastAPI and as a stdio child, to compare what they see."""

import asyncio
import json
import threading
from typing import Any

from session_store import InvalidMetadata
from session_store.current_tool_session import MISSING, current_session
from tests.support.stdio_server import Call, StdioServer, text


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


def __getattr__(name: str) -> Any:
    """The SDK's server, which takes a while to load, is made when it is asked for."""
    if name != "server":
        raise AttributeError(name)
    from mcp.server import MCPServer

    made: Any = MCPServer("session-tool")
    for tool in (visit, bump, annotate, times):
        made.tool()(tool)
    globals()[name] = made
    return made


TOOLS: dict[str, Any] = {"visit": visit, "bump": bump, "annotate": annotate, "times": times}


def serve_stdio() -> None:
    """Both eras, and one task for each call."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def called(call: Call) -> dict[str, Any]:
        return text(asyncio.run_coroutine_threadsafe(TOOLS[call.name](**call.arguments), loop).result())

    StdioServer("tool", {"tools/list": {"tools": []}, "tools/call": called}, {"tools": {}}, threads=True).run()


if __name__ == "__main__":
    serve_stdio()
