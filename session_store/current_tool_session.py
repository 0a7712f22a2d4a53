"""Find the session that a tool's code runs for: in the gateway's process, in a mounted app, or in a stdio child."""

import os
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Final

from session_store.ports.errors import SessionGone
from session_store.ports.sessions import SessionStore
from session_store.ports.tool_state import StateStore
from session_store.session import Session, checked_metadata
from session_store.tool_session import MISSING, SOCKET_VARIABLE, NoSession, SessionState, ToolSession

__all__ = [
    "MISSING",
    "SCOPE_KEY",
    "NoSession",
    "bound_session",
    "context_with",
    "current_session",
    "current_session_id",
    "tool_session",
]

SCOPE_KEY: Final = "mcp.session"
"""The key in the ASGI scope of a request that holds its session."""

_current: ContextVar[ToolSession | None] = ContextVar("mcp_session", default=None)


def current_session() -> ToolSession:
    """Return the session that this code runs for.

    In the gateway's process, this is the session of the request, or of the in-process server's connection. In a child
    process, it is the session that the child was started for.

    Raises:
        NoSession: there is none. A server that several sessions share gets each call's session in `_meta` instead.
    """
    session = _current.get()
    if session is not None:
        return session
    if SOCKET_VARIABLE in os.environ:
        from session_store.child_process_session import child_session

        return child_session()
    raise NoSession(
        "no session: this code runs neither for a request nor in a child that was started for a session "
        "(a `shared` server gets the session of each call in its _meta)"
    )


def current_session_id() -> str:
    """Return the id of the session that this code runs for in the gateway's process; empty if there is none."""
    session = _current.get()
    return "" if session is None else session.known_id


class bound_session:
    """Make `session` the current session (`current_session`) in a `with` block, and in tasks and threads started there.
    None: there is no current session."""

    # Not a generator with `contextmanager`, which takes three times as long: an app enters it twice in each request.
    __slots__ = ("_session", "_token")

    def __init__(self, session: ToolSession | None) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._token = _current.set(self._session)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def context_with(session: ToolSession) -> Context:
    """Return a copy of the present context variables, in which `session` is the current session. Code that runs in this
    copy finds the session by `current_session`."""
    context = copy_context()
    context.run(_current.set, session)
    return context


def tool_session(
    session: Session,
    *,
    sessions: SessionStore,
    state: StateStore,
    correlation: Callable[[], str] = str,
) -> ToolSession:
    """Return the object through which tools in this process use the session of a record. It reads and writes in
    `sessions` and `state`. `correlation` returns the correlation id of the current call."""

    async def record() -> Session:
        found = await sessions.peek(session.id)
        if found is None:
            raise SessionGone(session.id)
        return found

    async def read() -> Mapping[str, str]:
        return (await record()).metadata

    async def last_active() -> float:
        return (await record()).used_at

    async def write(changes: Mapping[str, str | None]) -> None:
        if await sessions.annotate(session.id, checked_metadata(changes)) is None:
            raise SessionGone(session.id)

    return ToolSession(
        id=session.id,
        principal=str(session.principal),
        agent=session.client.name,
        context=session.context,
        state=SessionState(_Bound(state, session.id)),
        read_metadata=read,
        write_metadata=write,
        read_last_active=last_active,
        read_correlation=correlation,
        created_at=session.created_at,
        idle_ttl_s=session.idle_ttl_s,
        max_age_s=session.max_age_s,
        token_hash=session.token_hash,
    )


class _Bound:
    """Reads and writes the state of one session in a store, without the session id as an argument."""

    def __init__(self, store: StateStore, session_id: str) -> None:
        self._store = store
        self._id = session_id

    async def get(self, key: str) -> bytes | None:
        return await self._store.get(self._id, key)

    async def set(self, key: str, value: bytes) -> None:
        await self._store.set(self._id, key, value)

    async def delete(self, key: str) -> bool:
        return await self._store.delete(self._id, key)

    async def increment(self, key: str, by: int) -> int:
        return await self._store.increment(self._id, key, by)

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes | None) -> bool:
        return await self._store.compare_and_set(self._id, key, expected, value)

    async def keys(self) -> list[str]:
        return await self._store.keys(self._id)
