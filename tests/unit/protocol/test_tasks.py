"""What messages say of tasks: who takes them, and how they stand."""

from typing import Any

import msgspec
import pytest

from gateway.protocol.tasks import TASKS, TaskState, declares_tasks, is_task, state_of, with_tasks
from tests.requirements import requirement
from transports.jsonrpc import Object

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


def parsed(text: str) -> Object:
    return msgspec.json.decode(text, type=Object)


@requirement("task.relay")
def test_a_client_takes_tasks_if_its_request_declares_the_extension() -> None:
    assert declares_tasks({CAPABILITIES: {"extensions": {TASKS: {}}}})
    metas: tuple[Any, ...] = (
        {},
        {CAPABILITIES: {}},
        {CAPABILITIES: None},
        {CAPABILITIES: {"extensions": {"other": {}}}},
        {CAPABILITIES: {"extensions": [TASKS]}},
        {CAPABILITIES: {"tasks": {}}},
        {"extensions": {TASKS: {}}},
    )
    for meta in metas:
        assert not declares_tasks(meta), meta


def test_a_result_is_a_task_by_its_type_only() -> None:
    assert is_task(parsed('{"resultType": "task", "taskId": "1"}'))
    assert not is_task(parsed('{"resultType": "complete", "taskId": "1"}'))
    assert not is_task(parsed('{"taskId": "1"}'))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('{"status": "working", "ttlMs": 1500}', TaskState(False, 1.5)),
        ('{"status": "input_required", "ttlMs": null}', TaskState(False, None)),
        ('{"status": "working"}', TaskState(False, None)),
        ('{"status": "completed", "ttlMs": 0}', TaskState(True, 0)),
        ('{"status": "failed"}', TaskState(True, None)),
        ('{"status": "cancelled"}', TaskState(True, None)),
        ('{"status": "of another time", "ttlMs": 1}', TaskState(False, 0.001)),
        ('{"status": 1}', None),
        ('{"status": "working", "ttlMs": "long"}', None),
        ("{}", None),
    ],
)
def test_the_state_of_a_task_is_read_from_what_a_server_says(text: str, state: TaskState | None) -> None:
    assert state_of(parsed(text)) == state
    assert state_of(parsed(text.replace("ttlMs", "ttl")), "ttl") == state, "its name in the legacy era"


@requirement("task.relay")
@pytest.mark.parametrize("said", ["{}", '{"elicitation": {"form": {}}, "extensions": {"com.acme/x": {"a": 1}}}'])
def test_the_gateway_declares_the_extension_beside_what_the_client_declares(said: str) -> None:
    meta = with_tasks({CAPABILITIES: msgspec.Raw(said.encode()), "other": msgspec.Raw(b"1")})
    decoded = {key: msgspec.json.decode(raw) for key, raw in meta.items()}
    assert declares_tasks(decoded)
    capabilities = decoded[CAPABILITIES]
    del capabilities["extensions"][TASKS]
    assert {key: value for key, value in capabilities.items() if value} == msgspec.json.decode(said)
    assert decoded["other"] == 1
