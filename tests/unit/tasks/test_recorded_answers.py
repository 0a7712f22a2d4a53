"""Recorded answers are given once each, in their order, and only to the question that they belong to."""

import msgspec

from gateway.tasks.made.stored_call import RecordedAnswers
from tests.requirements import requirement

pytestmark = requirement("task.durable")

YES, NO = b'{"action":"accept"}', b'{"action":"decline"}'


def test_each_answer_is_given_once_and_equal_questions_keep_their_order() -> None:
    recorded = RecordedAnswers.of({"early": YES.decode()})
    for answer in (YES, NO):
        recorded.add("go on?", msgspec.Raw(answer))
    again = RecordedAnswers(recorded.encoded(1_000))
    assert [again.take("go on?") for _ in range(3)] == [YES.decode(), NO.decode(), None]
    assert (again.take("other"), again.take("early"), again.take("early")) == (None, YES.decode(), None)


def test_what_is_too_large_or_of_another_version_is_asked_again() -> None:
    recorded = RecordedAnswers.of({"q": YES.decode()})
    assert recorded.encoded(10) == b"" and RecordedAnswers().encoded(10) == b""
    assert [RecordedAnswers(data).take("q") for data in (b"", b"no JSON", b'{"q":"text"}')] == [None] * 3
