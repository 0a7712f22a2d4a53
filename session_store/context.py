"""The current session as a tool sees it: the same in the gateway's process, in a mounted app, and in a stdio child."""

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from session_store.limits import InvalidState, check_key
from session_store.metadata import checked_metadata
from session_store.ports.errors import SessionGone
from session_store.ports.sessions import SessionStore
from session_store.ports.state import StateStore
from session_store.session import Context, Session

__all__ = [
    "MISSING",
    "NoSession",
    "SessionState",
    "StatePort",
    "ToolSession",
    "bound_session",
    "current_session",
    "to_json",
    "tool_session",
]

MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda self: "MISSING", "__bool__": lambda self: False})()
"""Stands for a key that is not there, where None would be a value."""

SOCKET_VARIABLE: Final = "MCP_SESSION_SOCKET"
"""Where a stdio child reaches the state of its session: a Unix socket that speaks HTTP."""
ACCESS_VARIABLE: Final = "MCP_SESSION_ACCESS"
"""The bearer token that goes with it. Good for one session and one upstream, as long as the child lives."""
FACTS_VARIABLE: Final = "MCP_SESSION_FACTS"
"""What the session is, as JSON: whatever names the operator gives the other variables."""


class NoSession(LookupError):
    """This code does not run for a session."""


class StatePort(Protocol):
    """The state of one session in bytes, as `StateStore` has it."""

    async def get(self, key: str) -> bytes | None: ...

    async def set(self, key: str, value: bytes) -> None: ...

    async def delete(self, key: str) -> bool: ...

    async def increment(self, key: str, by: int) -> int: ...

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes | None) -> bool: ...

    async def keys(self) -> list[str]: ...


class SessionState:
    """The session's state: JSON values by key, shared by everything that serves the session, seen by nobody else's.

    Every operation is atomic, across replicas too. All raise `SessionGone` once the session has ended,
    `StoreUnavailable` when the store does not answer, and `InvalidState` beyond a limit (`session_store.limits`).
    """

    def __init__(self, port: StatePort) -> None:
        self._port = port

    async def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` when the key is not there."""
        value = await self._port.get(key)
        return default if value is None else json.loads(value)

    async def set(self, key: str, value: Any) -> None:
        """Keep a JSON value."""
        await self._port.set(key, to_json(key, value))

    async def delete(self, key: str) -> bool:
        """Forget the key; whether it was there."""
        return await self._port.delete(key)

    async def increment(self, key: str, by: int = 1) -> int:
        """Add to an integer (0 when it is not there) and return the sum."""
        return await self._port.increment(key, by)

    async def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Set the key if its value is `expected`; whether it was. `MISSING` stands for no value, on both sides."""
        before = None if expected is MISSING else to_json(key, expected)
        after = None if value is MISSING else to_json(key, value)
        return await self._port.compare_and_set(key, before, after)

    async def keys(self) -> list[str]:
        """All keys, in order."""
        return await self._port.keys()


def to_json(key: str, value: Any) -> bytes:
    """Compact JSON with sorted names, so that equal values are equal bytes.

    Raises:
        InvalidState: the value is none that JSON has.
    """
    check_key(key)
    try:
        text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidState(f"the value of {key!r} cannot be kept as JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSession:
    """What a tool knows of the session it serves. `id` is a name, no credential; `principal` is who authenticated."""

    id: str
    principal: str
    agent: str
    context: Context
    state: SessionState
    read_metadata: Callable[[], Awaitable[Mapping[str, str]]]
    write_metadata: Callable[[Mapping[str, str | None]], Awaitable[None]] | None = None

    async def metadata(self) -> Mapping[str, str]:
        """The session's metadata as it is now."""
        return await self.read_metadata()

    async def annotate(self, changes: Mapping[str, str | None]) -> None:
        """Change the metadata, name by name; None removes one. Values that look like credentials are redacted.

        Raises:
            InvalidMetadata: no text, or more than a session may have.
            PermissionError: this code runs outside the gateway's process.
        """
        if self.write_metadata is None:
            raise PermissionError("metadata is written by the operator's rules and by in-process tools only")
        await self.write_metadata(changes)


_current: ContextVar[ToolSession | None] = ContextVar("mcp_session", default=None)


def current_session() -> ToolSession:
    """The session this code runs for.

    In the gateway's process it is the one of the request or of the in-process server's link; in a child process, the
    one the child was started for.

    Raises:
        NoSession: there is none. A server that is shared by sessions is told of them in the `_meta` of each call.
    """
    session = _current.get()
    if session is not None:
        return session
    if SOCKET_VARIABLE in os.environ:
        from session_store.child import child_session

        return child_session()
    raise NoSession(
        "no session: this code runs neither for a request nor in a child that was started for a session "
        "(a `shared` server is told of its sessions in the _meta of each call)"
    )


@contextmanager
def bound_session(session: ToolSession | None) -> Iterator[None]:
    """Make it the current session (None: have none) in the block, and in tasks and threads that are started there."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


def tool_session(session: Session, *, sessions: SessionStore, state: StateStore) -> ToolSession:
    """A session as tools in this process see it."""

    async def read() -> Mapping[str, str]:
        found = await sessions.peek(session.id)
        if found is None:
            raise SessionGone(session.id)
        return found.metadata

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
    )


class _Bound:
    """The state of one session in a store."""

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
