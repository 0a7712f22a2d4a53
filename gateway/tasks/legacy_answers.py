"""What clients of 2025-11-25 are told of a made task (MCP 2025-11-25, Tasks). Pure."""

from typing import Any, Final

import msgspec

from gateway.calls.owned_tasks import with_related
from gateway.errors import CANCELLED, error_of
from gateway.protocol.extensions import object_of
from gateway.protocol.results import legacy_result
from gateway.tasks.answers import iso_time
from session_store import Task
from transports.jsonrpc import Message, Object, encode

__all__ = ["VERSION", "created_legacy_result", "declaring_legacy_tasks", "legacy_outcome", "legacy_task"]

VERSION: Final = "2025-11-25"
"""The only version with these tasks."""


def legacy_task(task: Task, handle: str) -> dict[str, Any]:
    """`Task`. `handle` is the task's id for its client. `task` may be a head. A tool that has failed
    is a task that has failed."""
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
    """`CreateTaskResult`, in place of the result of the call."""
    return {"task": msgspec.Raw(encode(legacy_task(task, handle)))}


def legacy_outcome(task: Task, handle: str) -> Message:
    """The answer to `tasks/result` about a task that is over: what the call would have been answered with."""
    if task.status == "completed":
        result = legacy_result("tools/call", msgspec.json.decode(task.result, type=Object))
        return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(with_related(result, handle))))
    error = task.error or encode(error_of(CANCELLED, task.message or "Cancelled", ""))
    return Message(jsonrpc="2.0", id=0, error=msgspec.Raw(error))


def declaring_legacy_tasks(handshake: bytes) -> bytes:
    """An `initialize` result which says that tools can be called as tasks, whatever the servers say."""
    result = object_of(handshake)
    capabilities = object_of(result.get("capabilities"))
    tasks = object_of(capabilities.get("tasks"))
    requests = object_of(tasks.get("requests"))
    tools = {"call": msgspec.Raw(b"{}")} | object_of(requests.get("tools"))
    requests |= {"tools": msgspec.Raw(encode(tools))}
    nothing = msgspec.Raw(b"{}")
    tasks = {"list": nothing, "cancel": nothing} | tasks | {"requests": msgspec.Raw(encode(requests))}
    capabilities |= {"tasks": msgspec.Raw(encode(tasks))}
    return encode(result | {"capabilities": msgspec.Raw(encode(capabilities))})
