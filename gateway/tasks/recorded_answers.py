"""What the client of a task has answered, by the content of the questions: a person is asked once. Pure.

A task whose gateway dies may run again. Its server then asks from the beginning, and gets the answers that were given.
"""

from collections.abc import Mapping

import msgspec

from gateway.calls.suspended_call import InputRequest
from transports.jsonrpc import Object, encode

__all__ = ["RecordedAnswers", "answered"]


class RecordedAnswers:
    """Answers as JSON, by the digest of the question (`gateway.calls.suspended_call.question_digest`), those to equal
    questions in order. `data` is what `encoded` has returned; empty or of another version: there are none."""

    def __init__(self, data: bytes = b"") -> None:
        try:
            self._answers = msgspec.json.decode(data or b"{}", type=dict[str, list[msgspec.Raw]])
        except (msgspec.MsgspecError, RecursionError):
            self._answers = {}

    @classmethod
    def of(cls, answers: Mapping[str, str]) -> "RecordedAnswers":
        """One answer to each question."""
        recorded = cls()
        for digest, answer in answers.items():
            recorded.add(digest, msgspec.Raw(answer.encode()))
        return recorded

    def add(self, digest: str, answer: msgspec.Raw) -> None:
        """The client has answered a question."""
        self._answers.setdefault(digest, []).append(answer.copy())  # a slice would keep the whole message in memory

    def take(self, digest: str) -> str | None:
        """The next answer to such a question; None if it has to be asked. Each is returned once."""
        known = self._answers.get(digest)
        return bytes(known.pop(0)).decode() if known else None

    def encoded(self, most_bytes: int) -> bytes:
        """All answers, for a record. Empty if there are none, or if they are larger than that: they are asked again."""
        data = encode(self._answers) if self._answers else b""
        return data if len(data) <= most_bytes else b""


def answered(data: bytes, questions: Mapping[str, InputRequest], responses: Object) -> RecordedAnswers:
    """The recorded answers of `data` with those that a client gives to these questions now, by their keys."""
    recorded = RecordedAnswers(data)
    for key, question in questions.items():
        if key in responses:
            recorded.add(question.digest, responses[key])
    return recorded
