"""What 2025-11-25 clients are told of a task, in each of its states."""

from typing import Any

import msgspec
import pytest

from gateway.errors import CANCELLED
from gateway.tasks.legacy_answers import (
    created_legacy_result,
    declaring_legacy_tasks,
    legacy_outcome,
    legacy_task,
)
from tests.requirements import requirement
from tests.unit.tasks.test_answers import a_task
from transports.jsonrpc import encode

pytestmark = requirement("task.asked")

RELATED = {"io.modelcontextprotocol/related-task": {"taskId": "handle"}}
COMMON = {
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


def test_each_state_has_what_the_version_says() -> None:
    assert legacy_task(a_task(), "handle") == COMMON | {"status": "working"}
    asks = legacy_task(a_task(status="input_required", questions=b'{"q1":{}}'), "handle")
    assert asks == COMMON | {"status": "input_required"}
    assert legacy_task(a_task(status="completed", result=b'{"content":[]}'), "handle")["status"] == "completed"
    failed = legacy_task(a_task(status="failed", message="m", error=b'{"code":-1,"message":"m"}'), "handle")
    assert failed == COMMON | {"status": "failed", "statusMessage": "m"}
    created = msgspec.json.decode(encode(created_legacy_result(a_task(), "handle")))
    assert created == {"task": COMMON | {"status": "working"}}


def test_a_tool_that_has_failed_is_a_task_that_has_failed() -> None:
    failed = legacy_task(a_task(status="completed", is_tool_error=True, reason="no disk", message="m"), "handle")
    assert failed == COMMON | {"status": "failed", "statusMessage": "no disk"}
    silent = legacy_task(a_task(status="completed", is_tool_error=True), "handle")
    assert silent == COMMON | {"status": "failed"}
    unread = legacy_task(a_task(status="completed", is_tool_error=True, message="m"), "handle")
    assert unread == COMMON | {"status": "failed", "statusMessage": "m"}
    assert outcome(status="completed", result=encode(BROKEN)) == (BROKEN | {"_meta": RELATED}, None)


def test_the_outcome_is_what_the_call_would_have_been_answered_with() -> None:
    modern = {"resultType": "complete", "content": [], "_meta": {"own": 1}}
    assert outcome(status="completed", result=encode(modern)) == ({"content": [], "_meta": {"own": 1} | RELATED}, None)
    error = {"code": -1, "message": "m", "data": [1]}
    assert outcome(status="failed", error=encode(error)) == (None, error)
    assert outcome(status="cancelled", message="by you") == (None, {"code": CANCELLED, "message": "by you"})
    assert outcome(status="cancelled") == (None, {"code": CANCELLED, "message": "Cancelled"})


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
