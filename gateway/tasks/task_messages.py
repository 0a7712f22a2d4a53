"""Encode the tasks that the gateway has created, for legacy clients (MCP 2025-11-25) and modern ones (2026-07-28).
Pure: no I/O."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gateway.calls.server_task_owners import with_related
from gateway.errors import CANCELLED, error_of
from gateway.protocol.extensions import object_of
from gateway.protocol.result_translation import legacy_result
from gateway.protocol.tasks import TASKS
from session_store import Task
from transports.jsonrpc import Message, Object, encode

ACKNOWLEDGEMENT: Final = b'{"resultType":"complete"}'
"""The result of `tasks/update` and `tasks/cancel` for modern clients, as JSON."""

VERSION: Final = "2025-11-25"
"""The only legacy protocol version with tasks."""


def task_fields(task: Task, handle: str) -> dict[str, Any]:
    """Return a task for modern clients (ext-tasks, `DetailedTask`). `handle` is the task's id for its client."""
    fields: dict[str, Any] = {"taskId": handle, "status": task.status}
    if task.message:
        fields["statusMessage"] = task.message
    fields |= {
        "createdAt": iso_time(task.created_at),
        "lastUpdatedAt": iso_time(task.updated_at),
        "ttlMs": int(task.ttl_s * 1_000),
        "pollIntervalMs": task.poll_ms,
    }
    if task.status == "input_required":
        fields["inputRequests"] = msgspec.Raw(task.questions or b"{}")
    elif task.status == "completed":
        fields["result"] = msgspec.Raw(_modern(task.result))
    elif task.status == "failed":
        fields["error"] = msgspec.Raw(task.error)
    return fields


def task_object(task: Task, handle: str) -> Object:
    """Return a task for modern clients, each field encoded as JSON (ext-tasks, `DetailedTask`)."""
    return {name: msgspec.Raw(encode(value)) for name, value in task_fields(task, handle).items()}


def created_result(task: Task, handle: str) -> Object:
    """Return the result of a modern client's call that has become a task (ext-tasks, `CreateTaskResult`)."""
    return {"resultType": msgspec.Raw(b'"task"')} | task_object(task, handle)


def task_result(task: Task, handle: str) -> bytes:
    """Return the result of a modern client's `tasks/get`, as JSON (ext-tasks, `GetTaskResult`)."""
    return encode({"resultType": "complete"} | task_fields(task, handle))


def declaring_tasks(discovery: bytes) -> bytes:
    """Return a `server/discover` result with the tasks extension, even if the servers do not declare it."""
    return _declaring(discovery, {"capabilities": {"extensions": {TASKS: {}}}})


def declaring_legacy_tasks(handshake: bytes) -> bytes:
    """Return an `initialize` result that declares tools as callable as tasks, even if the servers do not declare it."""
    tasks: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    return _declaring(handshake, {"capabilities": {"tasks": tasks}})


def _declaring(raw: msgspec.Raw | bytes, declared: Mapping[str, Any]) -> bytes:
    """Return the JSON object `raw`, completed with those members of `declared` that it lacks, at all levels."""
    members = object_of(raw)
    for name, inner in declared.items():
        if name not in members:
            members[name] = msgspec.Raw(encode(inner))
        elif inner:  # what servers declare is kept, and only completed
            members[name] = msgspec.Raw(_declaring(members[name], inner))
    return encode(members)


def _modern(result: bytes) -> bytes:
    """Return a call's result with a `resultType`, as modern clients get it. A result in the legacy form has none."""
    members = object_of(result)
    return result if "resultType" in members else encode({"resultType": "complete"} | members)


def iso_time(at: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601, in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def legacy_task(task: Task, handle: str) -> dict[str, Any]:
    """Return a task for legacy clients (MCP 2025-11-25, `Task`). `handle` is the task's id for its client. `task` may
    be a record without its outcome. The status is `failed` if the tool has reported an error."""
    status, message = str(task.status), task.message
    if task.is_tool_error:
        status, message = "failed", task.reason or message
    fields: dict[str, Any] = {"taskId": handle, "status": status}
    if message:
        fields["statusMessage"] = message
    return fields | {
        "createdAt": iso_time(task.created_at),
        "lastUpdatedAt": iso_time(task.updated_at),
        "ttl": int(task.ttl_s * 1_000),
        "pollInterval": task.poll_ms,
    }


def created_legacy_result(task: Task, handle: str) -> Object:
    """Return the result of a legacy client's call that has become a task (MCP 2025-11-25, `CreateTaskResult`)."""
    return {"task": msgspec.Raw(encode(legacy_task(task, handle)))}


def legacy_outcome(task: Task, handle: str) -> Message:
    """Return the response to `tasks/result` about an ended task: the result or error of its call."""
    if task.status == "completed":
        result = legacy_result("tools/call", msgspec.json.decode(task.result, type=Object))
        return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(with_related(result, handle))))
    error = task.error or encode(error_of(CANCELLED, task.message or "Cancelled", ""))
    return Message(jsonrpc="2.0", id=0, error=msgspec.Raw(error))
