"""What clients of both eras are told of a task, in each of its states."""

from typing import Any

import msgspec
import pytest

from gateway.errors import CANCELLED, error_of
from gateway.tasks.task_messages import (
    ACKNOWLEDGEMENT,
    created_legacy_result,
    created_result,
    declaring_legacy_tasks,
    legacy_outcome,
    legacy_task,
    task_result,
)
from tests.requirements import requirement
from tests.unit.tasks.parts import a_task
from transports.jsonrpc import encode

pytestmark = requirement("task.asked")

COMMON = {
    "taskId": "handle",
    "createdAt": "2023-11-14T22:13:20.250Z",
    "lastUpdatedAt": "2023-11-14T22:13:21.000Z",
    "ttlMs": 60_000,
    "pollIntervalMs": 2_000,
}


def told(**fields: Any) -> Any:
    return msgspec.json.decode(task_result(a_task(**fields), "handle"))


@requirement("task.make")
def test_each_state_has_what_the_extension_says() -> None:
    working = COMMON | {"resultType": "complete", "status": "working"}
    assert told() == working
    assert told(message="half", questions=b'{"q1":{}}', result=b"{}") == working | {"statusMessage": "half"}
    asks = told(status="input_required", questions=b'{"q1":{"method":"roots/list"}}')
    assert asks["inputRequests"] == {"q1": {"method": "roots/list"}}
    done = {"resultType": "complete", "content": []}
    for result in (encode(done), b'{"content":[]}'):  # the second is of a legacy client's call
        assert told(status="completed", result=result)["result"] == done
    content = {"structuredContent": {"resultType": "pdf"}}
    assert told(status="completed", result=encode(content))["result"] == content | {"resultType": "complete"}
    assert told(status="failed", error=b'{"code":-1,"message":"m"}')["error"] == {"code": -1, "message": "m"}
    assert told(status="cancelled") == working | {"status": "cancelled"}


@requirement("task.make")
def test_the_handle_comes_in_place_of_a_result() -> None:
    created = msgspec.json.decode(encode(created_result(a_task(), "handle")))
    assert created == COMMON | {"resultType": "task", "status": "working"}
    legacy = msgspec.json.decode(encode(created_legacy_result(a_task(), "handle")))
    assert legacy == {"task": LEGACY | {"status": "working"}}
    assert msgspec.json.decode(ACKNOWLEDGEMENT) == {"resultType": "complete"}


RELATED = {"io.modelcontextprotocol/related-task": {"taskId": "handle"}}
LEGACY = {
    "taskId": "handle",
    "createdAt": "2023-11-14T22:13:20.250Z",
    "lastUpdatedAt": "2023-11-14T22:13:21.000Z",
    "ttl": 60_000,
    "pollInterval": 2_000,
}
BROKEN = {"content": [{"type": "image"}, {"type": "text", "text": "no disk"}], "isError": True}


def outcome(**fields: Any) -> tuple[Any, Any]:
    message = legacy_outcome(a_task(**fields), "handle")
    result, error = (
        msgspec.json.decode(part) if isinstance(part, msgspec.Raw) else None for part in (message.result, message.error)
    )
    return result, error


FAILED = {"status": "failed", "message": "m", "error": b'{"code":-1,"message":"m"}'}
TOOL_ERROR = {"status": "completed", "is_tool_error": True}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {"status": "working"}),
        ({"status": "input_required", "questions": b'{"q1":{}}'}, {"status": "input_required"}),
        ({"status": "completed", "result": b'{"content":[]}'}, {"status": "completed"}),
        (FAILED, {"status": "failed", "statusMessage": "m"}),
        (TOOL_ERROR | {"reason": "no disk", "message": "m"}, {"status": "failed", "statusMessage": "no disk"}),
        (TOOL_ERROR | {"message": "m"}, {"status": "failed", "statusMessage": "m"}),
        (TOOL_ERROR, {"status": "failed"}),
    ],
)
def test_each_state_has_what_2025_11_25_says(fields: dict[str, Any], told: dict[str, Any]) -> None:
    assert legacy_task(a_task(**fields), "handle") == LEGACY | told


def test_the_outcome_is_what_the_call_would_have_been_answered_with() -> None:
    modern = {"resultType": "complete", "content": [], "_meta": {"own": 1}}
    assert outcome(status="completed", result=encode(modern)) == ({"content": [], "_meta": {"own": 1} | RELATED}, None)
    assert outcome(result=encode(BROKEN), **TOOL_ERROR) == (BROKEN | {"_meta": RELATED}, None)
    error = {"code": -1, "message": "m", "data": [1]}
    assert outcome(status="failed", error=encode(error)) == (None, error)
    assert outcome(status="cancelled", message="by you") == (None, error_of(CANCELLED, "by you", ""))
    assert outcome(status="cancelled") == (None, error_of(CANCELLED, "Cancelled", ""))


CALL: Any = {"tools": {"call": {}}}
OURS: Any = {"list": {}, "cancel": {}, "requests": CALL}
MORE: Any = {"requests": CALL | {"own": {}}}


@pytest.mark.parametrize(
    ("declared", "expected"), [(None, OURS), (MORE, OURS | MORE), ({"list": {"x": 1}}, OURS | {"list": {"x": 1}})]
)
def test_the_handshake_declares_tasks_beside_what_servers_declare(declared: Any, expected: Any) -> None:
    capabilities = {"tools": {}} if declared is None else {"tools": {}, "tasks": declared}
    handshake = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "x": 1}
    told = msgspec.json.decode(declaring_legacy_tasks(encode(handshake)))
    assert told == handshake | {"capabilities": {"tools": {}, "tasks": expected}}
