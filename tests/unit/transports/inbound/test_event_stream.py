"""Event streams of answers, and when their frames may still be sent."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.requirements import requirement
from transports.inbound.event_stream import stream_answer
from transports.inbound_port import Answer
from transports.reply_queue import Frame, ReplyQueue

LOST = Frame(b'"lost"', final=True, error_code=-1)


@requirement("rep.fence")
@pytest.mark.parametrize("is_lost", [True, False])
async def test_frames_whose_record_had_to_wait_are_confirmed_again(is_lost: bool) -> None:
    """Another process may have claimed the session while the store gave out event ids."""
    sent = list[bytes]()
    confirmed = list[Frame]()

    async def record(frames: Sequence[Frame]) -> Sequence[str | None]:
        answer.is_doubtful = True
        return [str(number) for number, _ in enumerate(frames)]

    async def confirm(frame: Frame) -> Frame:
        confirmed.append(frame)
        return LOST if is_lost else frame

    async def send(event: Any) -> None:
        sent.append(event.get("body", b""))

    answer = SimpleNamespace(replies=ReplyQueue(), is_doubtful=False, record=record, confirmed=confirm, headers=[])
    last = Frame(b'"result"', final=True)
    answer.replies.push(last)
    is_result = await stream_answer(send, cast("Answer", answer), Frame(b'"progress"'), can_resume=True, poll_after_s=0)
    assert confirmed == [last] and is_result is not is_lost
    text = b"".join(sent)
    assert (b"lost" in text, b"result" in text, b"progress" in text) == (is_lost, not is_lost, not is_lost)
