"""The message of a task says how far it is, and that it runs again."""

from typing import Any

import msgspec
import pytest

from gateway.tasks.made.state import AGAIN, MAX_MESSAGE_CHARS, message_of, progress_text, reason_of
from tests.requirements import requirement
from tests.support.too_deep import TOO_DEEP


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
