"""What clients are told of a task, in each of its states."""

from typing import Any

import msgspec

from gateway.tasks.answers import acknowledgement, created_result, task_result
from session_store import Task
from session_store.session import new_session_id
from session_store.testing import ALICE
from tests.requirements import requirement
from transports.jsonrpc import encode


def a_task(**fields: Any) -> Task:
    """A task of alice."""
    values: dict[str, Any] = {
        "id": "t1",
        "session_id": new_session_id(),
        "principal": ALICE,
        "endpoint": "/mcp",
        "server": "main",
        "tool": "build",
        "created_at": 1_700_000_000.25,
        "updated_at": 1_700_000_001.0,
        "ttl_s": 60.0,
        "poll_ms": 2_000,
    }
    return Task(**(values | fields))


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


def test_the_handle_comes_in_place_of_a_result() -> None:
    created = msgspec.json.decode(encode(created_result(a_task(), "handle")))
    assert created == COMMON | {"resultType": "task", "status": "working"}
    assert msgspec.json.decode(acknowledgement()) == {"resultType": "complete"}
