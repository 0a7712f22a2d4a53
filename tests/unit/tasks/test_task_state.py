"""The life of a task: what leads where, and that an outcome stays."""

import pytest

from gateway.calls.state_table import IllegalStep
from gateway.tasks.made.state import TASK, TaskEvent, TaskState, after
from session_store.ports.tasks import OVER
from tests.requirements import requirement


def test_a_task_asks_and_works_again() -> None:
    assert after("working", TaskEvent.ASK) == after("input_required", TaskEvent.ASK) == "input_required"
    for event in (TaskEvent.RESUME, TaskEvent.RUN_AGAIN):
        assert after("input_required", event) == "working"


@requirement("task.durable")
def test_an_outcome_is_final() -> None:
    assert {state for state in TASK if not TASK[state]} == {TaskState(status) for status in OVER}
    for status in sorted(OVER):
        for event in TaskEvent:
            with pytest.raises(IllegalStep):
                after(status, event)
