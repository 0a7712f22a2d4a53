"""The states of a task, its messages, and which of its outcomes any reader can decode, from any depth of the stack."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.lifecycles import IllegalStep
from gateway.tasks.gateway_tasks.task_states import (
    AGAIN,
    MAX_LEVELS,
    MAX_MESSAGE_CHARS,
    TASK,
    TaskEvent,
    after,
    can_be_read,
    message_of,
    progress_text,
    reason_of,
)
from gateway.tasks.task_messages import legacy_outcome, legacy_task, task_result
from session_store.ports.tasks import OVER
from tests.requirements import requirement
from tests.support.too_deep import TOO_DEEP
from tests.unit.tasks.parts import one_that_runs

json_values = st.recursive(
    st.none() | st.text('[]{}"\\\\\\n\u00e9', max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{"\\\\', max_size=3), inner, max_size=3),
)


def nested(levels: int) -> bytes:
    return b'{"isError":true,"content":[{"type":"text","text":"x","y":' + b"[" * levels + b"]" * levels + b"}]}"


def deeper(frames: int, call: Callable[[], Any]) -> Any:
    return deeper(frames - 1, call) if frames else call()


def height(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(height, inner), default=0)


@requirement("task.durable")
@given(json_values)
def test_the_levels_of_an_outcome_are_those_of_its_arrays_and_objects(value: Any) -> None:
    beside = [value, *([[]] * MAX_LEVELS)]  # so many that the levels are counted, not only the brackets
    data, outer = msgspec.json.encode(beside), MAX_LEVELS - height(beside)
    assert can_be_read(b"[" * outer + data + b"]" * outer)
    assert not can_be_read(b'{"":' + b"[" * outer + data + b"]" * outer + b"}")


@requirement("task.durable")
def test_what_can_be_read_can_be_read_from_a_deeper_stack() -> None:
    last = max(levels for levels in range(1, MAX_LEVELS + 1) if can_be_read(nested(levels)))
    for frames in range(0, 150, 10):
        assert deeper(frames, lambda: reason_of(nested(last))) == "x"
    assert not can_be_read(nested(last + 1)) and can_be_read(nested(300)), "clients send and get some depth"
    assert can_be_read(msgspec.json.encode([{"id": row, "tags": ["a"]} for row in range(10_000)])), "rows are no levels"
    in_strings = {"text": "[" * 5_000, "{" * 5_000: '\\"[' * 5_000, "c": "\\" * 7}
    assert can_be_read(msgspec.json.encode(in_strings))


@requirement("task.durable")
async def test_each_outcome_that_a_task_keeps_can_be_told() -> None:
    for levels in (*range(MAX_LEVELS - 9, MAX_LEVELS + 9), 850, 950, 1_050, 5_000, 20_000):
        _, replica, running = await one_that_runs()
        found = await replica.settles(running, result=nested(levels))
        for tell in (legacy_task, task_result, legacy_outcome):
            deeper(60, lambda tell=tell, found=found: tell(found, "h"))  # type: ignore[misc]  # bound in this round
        assert (found.status == "completed") is can_be_read(nested(levels))
        assert found.status == "completed" or "deeper" in found.message or "cannot be read" in found.message


@requirement("task.make")
@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"message": "copying", "progress": 1, "total": 3}, "copying (1 of 3)"),
        ({"message": "copying", "progress": 0.5}, "copying (0.5)"),
        ({"progress": 2, "total": 4}, "progress: 2 of 4"),
        ({"message": 7, "progress": 10**400, "total": 1}, ""),
        ({"message": "only words"}, "only words"),
        ({}, ""),
    ],
)
def test_progress_becomes_a_text_for_people(params: dict[str, Any], text: str) -> None:
    assert progress_text({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in params.items()}) == text


@requirement("task.durable")
def test_every_message_of_a_task_that_runs_again_says_so() -> None:
    assert (message_of(1), message_of(1, "step 1")) == ("", "step 1")
    assert (message_of(2), message_of(2, "step 1")) == (AGAIN, f"{AGAIN}: step 1")
    assert len(message_of(2, "x" * 5_000)) == MAX_MESSAGE_CHARS


@requirement("task.asked")
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (b'{"content":[{"type":"image"},{"type":"text","text":"no disk"}],"isError":true}', "no disk"),
        (b'{"content":[{"type":"text","text":"%s"}],"isError":true}' % (b"x" * 5_000), "x" * MAX_MESSAGE_CHARS),
        (b'{"content":{},"isError":true}', ""),
        (b'{"content":[{"text":7}],"isError":true}', ""),
        (b'{"isError":true}', ""),
        pytest.param(b'{"content":[{"text":"x","y":%s}]}' % TOO_DEEP, "", id="too deep"),
    ],
)
def test_the_first_text_of_a_tool_error_is_its_reason(result: bytes, text: str) -> None:
    assert reason_of(result) == text


@requirement("task.durable")
def test_a_task_asks_and_works_again_until_its_outcome_which_is_final() -> None:
    assert after("working", TaskEvent.ASK) == after("input_required", TaskEvent.ASK) == "input_required"
    for event in (TaskEvent.RESUME, TaskEvent.RUN_AGAIN):
        assert after("input_required", event) == "working"
    assert {state for state in TASK if not TASK[state]} == OVER
    for status in sorted(OVER):
        for event in TaskEvent:
            with pytest.raises(IllegalStep):
                after(status, event)
