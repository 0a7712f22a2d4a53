"""Read and write what messages say of tasks, in MCP 2025-11-25 and in the extension `io.modelcontextprotocol/tasks`:
who declares them, and the fields of a task. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.protocol.extensions import object_of
from gateway.protocol.handshake import capabilities_of
from session_store.ports.tasks import OVER
from transports.era import Era
from transports.jsonrpc import Object, encode

TASKS: Final = "io.modelcontextprotocol/tasks"
"""The name of the extension."""

MAX_ID_CHARS: Final = 1_024
"""Maximum number of characters of a task's id, and of its creation time, in a server's message."""

_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"


class TaskAtServer(msgspec.Struct, frozen=True):
    """A task that a server has created for a call. It may outlive the gateway process that has sent the call."""

    id: str
    """The server's own id of the task."""
    created_at: str
    """The time as the server has written it."""
    era: Era
    """The server's era."""


class TaskState(msgspec.Struct, frozen=True):
    """The state of a task, read from a server's message."""

    is_over: bool
    ttl_s: float | None
    """The lifetime in seconds from the task's creation; None if it is not limited."""


def declares_tasks(meta: Mapping[str, Any]) -> bool:
    """Return True if the client declares the tasks extension in the `_meta` of this request."""
    declared = meta.get(_CAPABILITIES)
    extensions = declared.get("extensions") if isinstance(declared, dict) else None
    return isinstance(extensions, dict) and TASKS in extensions


def takes_task_calls(handshake: bytes | None) -> bool:
    """Return True if a server's answer to `initialize` declares that its tools can be called as tasks (MCP 2025-11-25,
    Tasks)."""
    declared = capabilities_of(handshake).get("tasks")
    requests = declared.get("requests") if isinstance(declared, dict) else None
    tools = requests.get("tools") if isinstance(requests, dict) else None
    return isinstance(tools, dict) and "call" in tools


def asks_for_task(params: Object) -> bool:
    """Return True if a request asks for a task (MCP 2025-11-25). A `null`, as some clients send it, asks for none."""
    return "task" in params and bytes(params["task"]) != b"null"


def with_tasks(meta: Object) -> Object:
    """Return `meta`, the `_meta` of a request to a modern server, with the tasks extension declared, so that the server
    may answer with a task."""
    capabilities = object_of(meta.get(_CAPABILITIES))
    extensions = object_of(capabilities.get("extensions")) | {TASKS: msgspec.Raw(b"{}")}
    return meta | {_CAPABILITIES: msgspec.Raw(encode(capabilities | {"extensions": msgspec.Raw(encode(extensions))}))}


def is_task(result: Object) -> bool:
    """Return True if a server's result is a task in place of the answer to the request."""
    return bytes(result.get("resultType", b"")) == b'"task"'


def names_tasks(method: str, params: Object) -> bool:
    """Return True if a request is a `subscriptions/listen` for changes of tasks."""
    return method == "subscriptions/listen" and "taskIds" in object_of(params.get("notifications"))


def state_of(task: Object, ttl: str = "ttlMs") -> TaskState | None:
    """Return the state of a task in a server's message; None if `task` has no valid state. `ttl` is the key of the time
    to live in milliseconds."""
    try:
        status = msgspec.json.decode(task.get("status", b"null"))
        ttl_ms = msgspec.json.decode(task.get(ttl, b"null"), type=float | None)
    except msgspec.MsgspecError:
        return None
    if not isinstance(status, str):
        return None
    return TaskState(status in OVER, None if ttl_ms is None else ttl_ms / 1_000)


def own_id(task: Object) -> str:
    """Return the `taskId` that a server has given a task; empty if it is missing or not a string."""
    found = msgspec.json.decode(task.get("taskId", b"null"))
    return found if isinstance(found, str) else ""


def created_at(task: Mapping[str, Any]) -> str:
    """Return the creation time of a task, as its server has written it; empty if missing or invalid."""
    try:
        return msgspec.json.decode(task.get("createdAt", b'""'), type=str)
    except msgspec.MsgspecError:
        return ""


def is_same_time(one: str, other: str) -> bool:
    """Return True if two times are the same text or differ by less than a second: a server may write the same time with
    fewer or more digits."""
    if one == other:
        return True
    first, second = _instant(one), _instant(other)
    return first is not None and second is not None and abs((first - second).total_seconds()) < 1.0


def _instant(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
