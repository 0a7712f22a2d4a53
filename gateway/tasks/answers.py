"""What clients are told of a made task: the shapes of the extension `io.modelcontextprotocol/tasks`. Pure."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.protocol.extensions import object_of
from gateway.protocol.tasks import TASKS
from session_store import Task
from transports.jsonrpc import Object, encode

__all__ = [
    "acknowledgement",
    "created_result",
    "declaring_tasks",
    "iso_time",
    "task_fields",
    "task_object",
    "task_result",
]


def task_fields(task: Task, handle: str) -> dict[str, Any]:
    """The fields of `DetailedTask`. `handle` is the task's id for its client."""
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
    """`DetailedTask`."""
    return {name: msgspec.Raw(encode(value)) for name, value in task_fields(task, handle).items()}


def created_result(task: Task, handle: str) -> Object:
    """`CreateTaskResult`, in place of the result of the call."""
    return {"resultType": msgspec.Raw(b'"task"')} | task_object(task, handle)


def task_result(task: Task, handle: str) -> bytes:
    """`GetTaskResult`."""
    return encode({"resultType": "complete"} | task_fields(task, handle))


def acknowledgement() -> bytes:
    """The result of `tasks/update` and `tasks/cancel`."""
    return b'{"resultType":"complete"}'


def declaring_tasks(discovery: bytes) -> bytes:
    """A `server/discover` result that declares the extension, whatever the servers declare."""
    result = object_of(discovery)
    capabilities = object_of(result.get("capabilities"))
    extensions = {TASKS: msgspec.Raw(b"{}")} | object_of(capabilities.get("extensions"))
    capabilities |= {"extensions": msgspec.Raw(encode(extensions))}
    return encode(result | {"capabilities": msgspec.Raw(encode(capabilities))})


def _modern(result: bytes) -> bytes:
    """The result of a call, with the type that one of a legacy client does not have."""
    members = object_of(result)
    return result if "resultType" in members else encode({"resultType": "complete"} | members)


def iso_time(at: float) -> str:
    """A time in seconds since the epoch as ISO 8601, in UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
