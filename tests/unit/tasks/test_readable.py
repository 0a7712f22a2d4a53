"""Whether the outcome of a task can be read by whoever asks for it, from any depth of the stack."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tasks.answers import legacy_outcome, legacy_task, task_result
from gateway.tasks.made.state import MAX_LEVELS, can_be_read, error_text, reason_of
from tests.requirements import requirement
from tests.unit.tasks.parts import one_that_runs

pytestmark = [pytest.mark.anyio, requirement("task.durable")]


def nested(levels: int) -> bytes:
    return b'{"isError":true,"content":[{"type":"text","text":"x","y":' + b"[" * levels + b"]" * levels + b"}]}"


def deeper(frames: int, call: Callable[[], Any]) -> Any:
    return deeper(frames - 1, call) if frames else call()


json_values = st.recursive(
    st.none() | st.text('[]{}"\\\\\\n\u00e9', max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{"\\\\', max_size=3), inner, max_size=3),
)


def height(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(height, inner), default=0)


@given(json_values)
def test_the_levels_of_an_outcome_are_those_of_its_arrays_and_objects(value: Any) -> None:
    beside = [value, *([[]] * MAX_LEVELS)]  # so many that the levels are counted, not only the brackets
    data, outer = msgspec.json.encode(beside), MAX_LEVELS - height(beside)
    assert can_be_read(b"[" * outer + data + b"]" * outer)
    assert not can_be_read(b'{"":' + b"[" * outer + data + b"]" * outer + b"}")


def test_what_can_be_read_can_be_read_from_a_deeper_stack() -> None:
    last = max(levels for levels in range(1, MAX_LEVELS + 1) if can_be_read(nested(levels)))
    for frames in range(0, 150, 10):
        assert deeper(frames, lambda: reason_of(nested(last))) == "x"
    assert not can_be_read(nested(last + 1)) and can_be_read(nested(300)), "clients send and get some depth"
    assert can_be_read(msgspec.json.encode([{"id": row, "tags": ["a"]} for row in range(10_000)])), "rows are no levels"
    in_strings = {"text": "[" * 5_000, "{" * 5_000: '\\"[' * 5_000, "c": "\\" * 7}
    assert can_be_read(msgspec.json.encode(in_strings))


async def test_each_outcome_that_a_task_keeps_can_be_told() -> None:
    for levels in (*range(MAX_LEVELS - 9, MAX_LEVELS + 9), 850, 950, 1_050, 5_000, 20_000):
        _, replica, running = await one_that_runs()
        found = await replica.settles(running, result=nested(levels))
        for tell in (legacy_task, task_result, legacy_outcome):
            deeper(60, lambda tell=tell, found=found: tell(found, "h"))  # type: ignore[misc]
        assert (found.status == "completed") is can_be_read(nested(levels))
        assert found.status == "completed" or "deeper" in found.message or "cannot be read" in found.message


async def test_an_error_with_data_that_is_too_deep_keeps_its_code_and_message() -> None:
    _, replica, running = await one_that_runs()
    error = b'{"code":-5,"message":"boom","data":' + b"[" * MAX_LEVELS + b"]" * MAX_LEVELS + b"}"
    assert error_text(msgspec.Raw(error)) == "boom"
    found = await replica.settles(running, error=error)
    assert msgspec.json.decode(found.error) == {"code": -5, "message": "boom"}
