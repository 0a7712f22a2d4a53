"""What messages say of tasks: who takes them, and how they stand."""

from typing import Any

import msgspec
import pytest

from gateway.protocol.tasks import TASKS, TaskState, declares_tasks, is_task, state_of, with_tasks
from tests.requirements import requirement
from tests.unit.protocol.parts import raw

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@requirement("task.relay")
def test_a_client_takes_tasks_if_its_request_declares_the_extension_and_a_result_is_one_by_its_type_only() -> None:
    assert declares_tasks({CAPABILITIES: {"extensions": {TASKS: {}}}})
    others: tuple[Any, ...] = ({}, None, {"extensions": {"other": {}}}, {"extensions": [TASKS]}, {"tasks": {}})
    for meta in ({}, {"extensions": {TASKS: {}}}, *({CAPABILITIES: other} for other in others)):
        assert not declares_tasks(meta), meta
    assert is_task(raw(resultType="task", taskId="1"))
    assert not is_task(raw(resultType="complete", taskId="1")) and not is_task(raw(taskId="1"))


@pytest.mark.parametrize(
    ("task", "state"),
    [
        ({"status": "working", "ttlMs": 1500}, TaskState(False, 1.5)),
        ({"status": "input_required", "ttlMs": None}, TaskState(False, None)),
        ({"status": "working"}, TaskState(False, None)),
        ({"status": "completed", "ttlMs": 0}, TaskState(True, 0)),
        ({"status": "failed"}, TaskState(True, None)),
        ({"status": "cancelled"}, TaskState(True, None)),
        ({"status": "of another time", "ttlMs": 1}, TaskState(False, 0.001)),
        ({"status": 1}, None),
        ({"status": "working", "ttlMs": "long"}, None),
        ({}, None),
    ],
)
def test_the_state_of_a_task_is_read_from_what_a_server_says(task: dict[str, Any], state: TaskState | None) -> None:
    assert state_of(raw(**task)) == state
    legacy = {"ttl" if key == "ttlMs" else key: value for key, value in task.items()}
    assert state_of(raw(**legacy), "ttl") == state, "its name in the legacy era"


@requirement("task.relay")
@pytest.mark.parametrize("own", [{}, {"elicitation": {"form": {}}, "extensions": {"com.acme/x": {"a": 1}}}])
def test_the_gateway_declares_the_extension_beside_what_the_client_declares(own: dict[str, Any]) -> None:
    meta = {key: msgspec.json.decode(each) for key, each in with_tasks(raw(**{CAPABILITIES: own}, other=1)).items()}
    assert meta == {CAPABILITIES: own | {"extensions": own.get("extensions", {}) | {TASKS: {}}}, "other": 1}
