"""Read and write the extension `io.modelcontextprotocol/tasks`: who declares it, and the fields of a task. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.protocol.extensions import object_of
from session_store.ports.tasks import OVER
from transports.era import Era
from transports.jsonrpc import Object, encode

TASKS: Final = "io.modelcontextprotocol/tasks"
"""The name of the extension."""

MAX_ID_CHARS: Final = 1_024
"""Most characters of the id, and of the creation time, that a server gives a task which the gateway follows."""

_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"


class TaskAtServer(msgspec.Struct, frozen=True):
    """A task that a server has made of a call. It may outlive the process that has sent the call.

    `id` is the server's own, `created_at` the time as the server has written it, and `era` that of the server.
    """

    id: str
    created_at: str
    era: Era


class TaskState(msgspec.Struct, frozen=True):
    """The state of a task in a server's message. `ttl_s` counts from its creation; None: the server sets no limit."""

    is_over: bool
    ttl_s: float | None


def declares_tasks(meta: Mapping[str, Any]) -> bool:
    """Return whether the client declares the extension in the `_meta` of this request: no other request counts."""
    declared = meta.get(_CAPABILITIES)
    extensions = declared.get("extensions") if isinstance(declared, dict) else None
    return isinstance(extensions, dict) and TASKS in extensions


def asks_for_task(params: Object) -> bool:
    """Return whether a request asks for a task (MCP 2025-11-25). `null`, which some clients write, asks for none."""
    return "task" in params and bytes(params["task"]) != b"null"


def with_tasks(meta: Object) -> Object:
    """Declare tasks in the `_meta` of a request that the gateway makes: it takes a task in place of a result."""
    capabilities = object_of(meta.get(_CAPABILITIES))
    extensions = object_of(capabilities.get("extensions")) | {TASKS: msgspec.Raw(b"{}")}
    return meta | {_CAPABILITIES: msgspec.Raw(encode(capabilities | {"extensions": msgspec.Raw(encode(extensions))}))}


def is_task(result: Object) -> bool:
    """Return whether a server's result is a task, in place of the answer to the request."""
    return bytes(result.get("resultType", b"")) == b'"task"'


def names_tasks(method: str, params: Object) -> bool:
    """Return whether a request is a `subscriptions/listen` that names tasks."""
    return method == "subscriptions/listen" and "taskIds" in object_of(params.get("notifications"))


def state_of(task: Object, ttl: str = "ttlMs") -> TaskState | None:
    """Return the state of a task as reported; None if this is no task. `ttl` is the key of the time to live, in ms."""
    try:
        status = msgspec.json.decode(task.get("status", b"null"))
        ttl_ms = msgspec.json.decode(task.get(ttl, b"null"), type=float | None)
    except msgspec.MsgspecError:
        return None
    if not isinstance(status, str):
        return None
    return TaskState(status in OVER, None if ttl_ms is None else ttl_ms / 1_000)


def own_id(task: Object) -> str:
    """Return the id that a server has given a task; empty if it has none."""
    found = msgspec.json.decode(task.get("taskId", b"null"))
    return found if isinstance(found, str) else ""


def created_at(task: Mapping[str, Any]) -> str:
    """Return the time when a task was created, as its server writes it; empty if it does not say."""
    try:
        return msgspec.json.decode(task.get("createdAt", b'""'), type=str)
    except msgspec.MsgspecError:
        return ""


def is_same_time(one: str, other: str) -> bool:
    """Return whether two times are the same to the second, or the same text. A server may write a time with more or
    fewer digits once it has read that from its store."""
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
