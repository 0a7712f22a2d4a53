"""Offer tools of the gateway itself, off by default: a client lists, inspects and ends its own sessions.

A tool call that names no session works on the client's only session. If there are several, it fails with a message
that says how to choose one.
"""

from time import time
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from gateway.sessions.lifecycle import SessionLifecycle
from session_store import Session, SessionStore, current_session
from session_store.session import redact

NAME: Final = "gateway"
_HERE: Final = (
    "This call is in that session, which no tool ends: the call would get no answer. The client ends its own session, "
    "when it disconnects or by DELETE with its session id."
)
_LEAST_CHARS: Final = 4
"""The fewest characters of a session id that `end_session` accepts. If it accepted none, a model that knows no id could
end its only other session."""
_PAGE: Final = 500
_MOST: Final = 20_000
"""Maximum number of sessions in the store that are searched to find those of a principal."""


def gateway_tools(lifecycle: SessionLifecycle, store: SessionStore) -> Any:
    """Return an MCP server with tools that list, show and end sessions of the principal that calls them."""
    server = MCPServer(NAME)

    @server.tool(name="list_sessions", annotations={"readOnlyHint": True})  # type: ignore[arg-type]  # or a mapping
    async def list_sessions() -> list[dict[str, Any]]:
        """List your live sessions."""
        return [_shown(session) for session in await own_sessions(store)]

    @server.tool(name="show_session", annotations={"readOnlyHint": True})  # type: ignore[arg-type]  # or a mapping
    async def show_session(session: str = "") -> dict[str, Any]:
        """Show one of your sessions. Give the first characters of its id; optional if you have only one session."""
        return _shown(_chosen(await own_sessions(store), session))

    @server.tool(name="end_session", annotations={"idempotentHint": True})  # type: ignore[arg-type]  # or a mapping
    async def end_session(session: str) -> str:
        """End another one of your sessions, with its processes. Give the first characters of its id, at least four."""
        if len(session) < _LEAST_CHARS:
            raise ToolError("Nothing was ended: give at least the first four characters of the session's id.")
        here = current_session().id
        others = [own for own in await own_sessions(store) if own.id != here]
        if here.startswith(session) and not any(own.id.startswith(session) for own in others):
            raise ToolError(_HERE)
        found = _chosen(others, session)
        await lifecycle.end(found.id, "its owner ended it")
        return f"ended {redact(found.id)}"

    return server


async def own_sessions(store: SessionStore) -> list[Session]:
    """Return the sessions of the principal that calls the tool. For an anonymous client, return only the session of the
    call."""
    here = await store.peek(current_session().id)
    if here is None or here.principal.is_anonymous:
        return [] if here is None else [here]
    own: list[Session] = []
    after = ""
    for _ in range(_MOST // _PAGE):
        page = await store.page(after=after, limit=_PAGE)
        own += [session for session in page if session.principal == here.principal]
        if len(page) < _PAGE:
            break
        after = page[-1].id
    return own


def _chosen(own: list[Session], prefix: str) -> Session:
    """Return the session in `own` whose id begins with `prefix`. Raises `ToolError` if there is none, or more than
    one."""
    matching = [session for session in own if session.id.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise ToolError("You have no such session. list_sessions lists yours.")
    names = ", ".join(redact(session.id) for session in matching[:20])
    raise ToolError(f"{len(matching)} of your sessions match. Give the first characters of one of these ids: {names}")


def _shown(session: Session) -> dict[str, Any]:
    now = time()
    return {
        "session": redact(session.id),
        "client": session.client.name,
        "era": session.era,
        "endpoint": session.endpoint,
        "workspace": session.context.workspace,
        "trust": session.context.trust,
        "age_s": round(now - session.created_at),
        "idle_s": round(max(0.0, now - session.used_at)),
        "here": session.id == current_session().id,
    }
