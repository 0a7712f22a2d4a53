"""Give code in a stdio child process its session: facts from the environment, state from the gateway over a Unix
socket."""

import functools
import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import anyio.to_thread

from session_store.ports.errors import SessionGone, StoreUnavailable
from session_store.ports.tool_state import InvalidState, check_key
from session_store.session import Context, ContextField, Provenance
from session_store.tool_session import (
    ACCESS_VARIABLE,
    FACTS_VARIABLE,
    SOCKET_VARIABLE,
    NoSession,
    SessionState,
    ToolSession,
)

TIMEOUT_S = 5.0


class SocketState:
    """Read and write the state of one session at the gateway, over HTTP on a Unix socket (docs/state.md).

    All methods may raise `SessionGone`, `InvalidState` and `StoreUnavailable`.
    """

    def __init__(self, path: str, access: str) -> None:
        self._path = path
        self._headers = {"Authorization": f"Bearer {access}", "Content-Type": "application/json"}

    async def get(self, key: str) -> bytes | None:
        status, body = await self._ask("GET", _path_of(key))
        return None if status == 404 else body

    async def set(self, key: str, value: bytes) -> None:
        await self._ask("PUT", _path_of(key), value)

    async def delete(self, key: str) -> bool:
        status, _ = await self._ask("DELETE", _path_of(key))
        return status != 404

    async def increment(self, key: str, by: int) -> int:
        _, body = await self._ask("POST", f"{_path_of(key)}/increment", json.dumps({"by": by}).encode())
        return int(json.loads(body)["value"])

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes | None) -> bool:
        change = b",".join(
            b'"%s":%s' % (name, given)
            for name, given in ((b"expected", expected), (b"value", value))
            if given is not None
        )
        _, body = await self._ask("POST", f"{_path_of(key)}/compare-and-set", b"{" + change + b"}")
        return bool(json.loads(body)["swapped"])

    async def keys(self) -> list[str]:
        _, body = await self._ask("GET", "/v1/state")
        return list(json.loads(body)["keys"])

    async def metadata(self) -> Mapping[str, str]:
        """Return the session's current metadata."""
        _, body = await self._ask("GET", "/v1/session")
        return dict(json.loads(body)["metadata"])

    async def last_active(self) -> float:
        """Return the time of the session's last use, in seconds since the epoch."""
        _, body = await self._ask("GET", "/v1/session")
        return float(json.loads(body)["last_active_at"])

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        # In a thread, because `http.client` blocks. An asynchronous client would cost every child one more import.
        status, answer = await anyio.to_thread.run_sync(self._exchange, method, path, body)
        if status < 400 or (status == 404 and method in ("GET", "DELETE")):
            return status, answer
        reason = _reason(answer)
        if status == 410:
            raise SessionGone(reason)
        if status in (400, 409, 413):
            raise InvalidState(reason)
        is_refused = status < 500 or status == 503
        raise StoreUnavailable(f"{reason} (status {status})", may_have_taken_effect=not is_refused)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path)
        is_connected = False
        try:
            connection.connect()
            is_connected = True
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            text = f"the gateway's state socket cannot be reached: {error}"
            raise StoreUnavailable(text, may_have_taken_effect=is_connected) from error
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("session", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _path_of(key: str) -> str:
    check_key(key)
    return f"/v1/state/{quote(key, safe='')}"


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


@functools.cache
def child_session() -> ToolSession:
    """Return the session that this child process was started for, from the process's environment. Raises `NoSession` if
    the environment names none."""
    try:
        facts: Any = json.loads(os.environ[FACTS_VARIABLE])
        state = SocketState(os.environ[SOCKET_VARIABLE], os.environ[ACCESS_VARIABLE])
        return ToolSession(
            id=facts["session_id"],
            principal=facts["principal"],
            agent=facts["agent"],
            context=Context(
                workspace=facts["workspace"],
                trust=facts["trust"],
                permissions=tuple(facts["permissions"].split()),
                read_only=facts.get("read_only", False),
                fields=tuple(
                    ContextField(name, value, facts["fields_provenance"][name])
                    for name, value in facts.get("fields", {}).items()
                ),
                provenance=Provenance(workspace=facts.get("workspace_provenance") or "announced"),
            ),
            state=SessionState(state),
            read_metadata=state.metadata,
            read_last_active=state.last_active,
            read_correlation=lambda: str(facts.get("correlation_id", "")),
            created_at=facts.get("created_at", 0.0),
            idle_ttl_s=facts.get("idle_ttl_s", 0.0),
            max_age_s=facts.get("max_age_s", 0.0),
            token_hash=facts.get("token_hash", ""),
        )
    except (KeyError, ValueError) as error:
        raise NoSession(f"the environment of this process names no session: {error}") from None
