"""Give a tool access to its session: facts, state and metadata. Does not know where these are stored.

Errors that the caller of a tool may read are raised so that the official SDK passes their text on: `MCPServer` of SDK 2
gives its client the text of `ToolError` and `ResourceError` only. For any other error, the client gets "Error executing
tool NAME".
"""

import functools
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

from session_store.ports.tool_state import InvalidState, check_key
from session_store.session import Context, InvalidMetadata

_SDK_ERRORS: Final = "mcp.server.mcpserver.exceptions"
"""The SDK's module with `ToolError` and `ResourceError`. It is never imported here: children that do not use the SDK
start in a tenth of the time. A process whose server is an `MCPServer` has already imported it."""


class _ReadableByCallers:
    """Raise `InvalidState` and `InvalidMetadata` of a `with` block again, as errors whose text `MCPServer` passes on to
    the caller of the tool."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing: `__exit__` does the work."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidState | InvalidMetadata) and _SDK_ERRORS in sys.modules:
            own: Any = type(error)
            kind = _passed_on(own)
            # Without `__init__`: a subclass of a store may have other parameters.
            raise kind.__new__(kind, *error.args).with_traceback(trace) from None


READABLE_BY_CALLERS: Final = _ReadableByCallers()


@functools.cache
def _passed_on(kind: type[ValueError]) -> type[ValueError]:
    """Return a subclass of `kind` whose text `MCPServer` passes on from tools and from resources."""
    sdk = sys.modules[_SDK_ERRORS]
    bases = [getattr(sdk, name, None) for name in ("ToolError", "ResourceError")]
    theirs = [base for base in bases if base is not None and not issubclass(kind, base)]
    return type(kind.__name__, (kind, *theirs), {"__module__": kind.__module__, "__doc__": kind.__doc__})


MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda self: "MISSING", "__bool__": lambda self: False})()
"""Stands for a missing key, because None is a valid value of a key."""

SOCKET_VARIABLE: Final = "MCP_SESSION_SOCKET"
"""Environment variable of a stdio child: the Unix socket where it reaches its session's state over HTTP."""
ACCESS_VARIABLE: Final = "MCP_SESSION_ACCESS"
"""Environment variable of a stdio child: the bearer token for the socket. It is valid for one session and one upstream
while the child lives."""
FACTS_VARIABLE: Final = "MCP_SESSION_FACTS"
"""Environment variable of a stdio child: the facts of its session as JSON. The operator cannot rename this one."""


_decode: Final = json.JSONDecoder().raw_decode
"""Decodes compact JSON in a third of the time of `json.loads`. Returns the value and the position where it ends."""


class NoSession(LookupError):
    """The running code does not belong to a session."""


class StatePort(Protocol):
    """Read and write the state of one session: `StateStore` without the session id."""

    async def get(self, key: str) -> bytes | None: ...

    async def set(self, key: str, value: bytes) -> None: ...

    async def delete(self, key: str) -> bool: ...

    async def increment(self, key: str, by: int) -> int: ...

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes | None) -> bool: ...

    async def keys(self) -> list[str]: ...


class SessionState:
    """Read and write a session's state: JSON values by key. The session's servers share them; other sessions cannot see
    them.

    Every operation is atomic, across replicas too. All raise `SessionGone` once the session has ended,
    `StoreUnavailable` when the store does not answer, and `InvalidState` beyond a limit. A server of the official SDK
    passes the text of `InvalidState` on to the caller of the tool.
    """

    def __init__(self, port: StatePort) -> None:
        self._port = port

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of the key; `default` if the key is missing."""
        with READABLE_BY_CALLERS:
            value = await self._port.get(key)
        return default if value is None else _decode(value.decode())[0]

    async def set(self, key: str, value: Any) -> None:
        """Store the value under the key, as JSON. Raises `InvalidState` if JSON cannot hold it."""
        with READABLE_BY_CALLERS:
            await self._port.set(key, to_json(key, value))

    async def delete(self, key: str) -> bool:
        """Delete the key. Return True if it existed."""
        with READABLE_BY_CALLERS:
            return await self._port.delete(key)

    async def increment(self, key: str, by: int = 1) -> int:
        """Add `by` to the integer under the key, and return the sum. A missing key counts as 0."""
        with READABLE_BY_CALLERS:
            return await self._port.increment(key, by)

    async def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Set the key to `value` if its present value is `expected`. Return True if the key was set. As `expected`,
        `MISSING` means that the key is missing; as `value`, it deletes the key."""
        with READABLE_BY_CALLERS:
            before = None if expected is MISSING else to_json(key, expected)
            after = None if value is MISSING else to_json(key, value)
            return await self._port.compare_and_set(key, before, after)

    async def keys(self) -> list[str]:
        """Return all keys of the session's state, sorted."""
        return await self._port.keys()


def to_json(key: str, value: Any) -> bytes:
    """Return the value as compact JSON with sorted names, so that equal values have equal bytes.

    Raises:
        InvalidState: JSON cannot represent the value.
    """
    check_key(key)
    try:
        text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidState(f"the value of {key!r} cannot be stored as JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSession:
    """The session that a tool serves: its facts, its state and its metadata. `current_session` returns it."""

    id: str
    """The session's id, which is no credential."""
    principal: str
    """The authenticated caller."""
    agent: str
    """The name of the client."""
    context: Context
    state: SessionState
    read_metadata: Callable[[], Awaitable[Mapping[str, str]]]
    write_metadata: Callable[[Mapping[str, str | None]], Awaitable[None]] | None = None
    read_last_active: Callable[[], Awaitable[float]] | None = None
    read_correlation: Callable[[], str] = str
    created_at: float = 0.0
    """In seconds since the epoch."""
    idle_ttl_s: float = 0.0
    """The session ends when it was idle for this long, and at the age `max_age_s`."""
    max_age_s: float = 0.0
    token_hash: str = ""
    """The first 16 hexadecimal digits of the SHA-256 of the credential that opened the session."""

    @property
    def correlation_id(self) -> str:
        """Return the correlation id of the call that this code serves. In a child process, return the id of the call
        that started the process; later calls have their ids in `_meta`."""
        return self.read_correlation()

    async def last_active_at(self) -> float:
        """Return the time of the session's last use, in seconds since the epoch. A call counts when it has ended."""
        return self.created_at if self.read_last_active is None else await self.read_last_active()

    @property
    def known_id(self) -> str:
        """Return the session id for log lines; empty if it is not known yet: some sessions are looked up at their first
        use."""
        return self.id

    async def metadata(self) -> Mapping[str, str]:
        """Return the session's current metadata."""
        return await self.read_metadata()

    async def annotate(self, changes: Mapping[str, str | None]) -> None:
        """Set these entries of the session's metadata; None removes an entry. Values that look like credentials are
        redacted.

        Raises:
            InvalidMetadata: a value is not text, or the metadata would be too large.
            PermissionError: this code runs in a child process, which can only read metadata.
        """
        if self.write_metadata is None:
            raise PermissionError("metadata is written by the operator's rules and by in-process tools only")
        with READABLE_BY_CALLERS:
            await self.write_metadata(changes)
