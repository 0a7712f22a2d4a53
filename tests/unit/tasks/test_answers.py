"""What clients are told of a task, in each of its states."""

from typing import Any

import msgspec

from gateway.tasks.answers import acknowledgement, created_result, task_result
from session_store import Task
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.jsonrpc import encode


def a_task(**fields: Any) -> Task:
    session = a_session(FakeClock())
    return Task(
        id="t1",
        session_id=session.id,
        principal=session.principal,
        endpoint="/mcp",
        server="main",
        tool="build",
        created_at=1_700_000_000.25,
        updated_at=1_700_000_001.0,
        ttl_s=60.0,
        poll_ms=2_000,
        **fields,
    )


COMMON = {
    "taskId": "handle",
    "createdAt": "2023-11-14T22:13:20.250Z",
    "lastUpdatedAt": "2023-11-14T22:13:21.000Z",
    "ttlMs": 60_000,
    "pollIntervalMs": 2_000,
}


def told(task: Task) -> Any:
    return msgspec.json.decode(task_result(task, "handle"))


@requirement("task.make")
def test_each_state_has_what_the_extension_says() -> None:
    working = COMMON | {"resultType": "complete", "status": "working"}
    assert told(a_task()) == working
    assert told(a_task(message="half", questions=b'{"q1":{}}', result=b"{}")) == working | {"statusMessage": "half"}
    asks = told(a_task(status="input_required", questions=b'{"q1":{"method":"roots/list"}}'))
    assert asks["inputRequests"] == {"q1": {"method": "roots/list"}}
    done = {"resultType": "complete", "content": []}
    assert told(a_task(status="completed", result=encode(done)))["result"] == done
    of_a_legacy_client = told(a_task(status="completed", result=b'{"content":[]}'))
    assert of_a_legacy_client["result"] == done
    content = {"structuredContent": {"resultType": "pdf"}}
    assert told(a_task(status="completed", result=encode(content)))["result"] == content | {"resultType": "complete"}
    assert told(a_task(status="failed", error=b'{"code":-1,"message":"m"}'))["error"] == {"code": -1, "message": "m"}
    assert told(a_task(status="cancelled")) == COMMON | {"resultType": "complete", "status": "cancelled"}


def test_the_handle_comes_in_place_of_a_result() -> None:
    created = msgspec.json.decode(encode(created_result(a_task(), "handle")))
    assert created == COMMON | {"resultType": "task", "status": "working"}
    assert msgspec.json.decode(acknowledgement()) == {"resultType": "complete"}
