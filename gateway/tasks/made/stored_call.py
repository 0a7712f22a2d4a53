"""The call of a task as it is stored, so that a later owner can go on with it with the rights that it had. Pure.

A task whose gateway dies may run again. Its server then asks from the beginning, and gets the answers that were given:
a person is asked once.
"""

from collections.abc import Mapping

import msgspec

from gateway.calls.suspended_call import InputRequest
from gateway.protocol.capabilities import Caller
from gateway.protocol.tasks import MAX_ID_CHARS, TaskAtServer
from session_store import Context
from transports.jsonrpc import Object, encode

__all__ = ["MAX_BYTES", "FollowedCall", "RecordedAnswers", "StoredCall", "answered", "following", "stored"]

MAX_BYTES = 256 << 10
"""Bytes of a call that is stored. A larger one does not run again, and the task of its server is not followed."""


class FollowedCall(msgspec.Struct, frozen=True):
    """The task that a server has made of the call. `caller` is what the client has declared to the server, if it did so
    with the call."""

    task: TaskAtServer
    caller: Caller | None


class StoredCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the client has sent, `_meta` included, and the context of its request: the session's may be another one by
    the time the call runs again, and may grant more. `params` are empty if the call cannot run again. `is_legacy`: the
    client is of a version before 2026-07-28."""

    params: Object
    context: Context
    is_legacy: bool = False
    followed: FollowedCall | None = None

    @classmethod
    def read(cls, data: bytes) -> "StoredCall":
        """Return the call that `stored` has made bytes of."""
        return msgspec.json.decode(data, type=cls)


def stored(params: Object, context: Context, *, is_legacy: bool = False) -> bytes:
    """Return the bytes of a call, without answers to what it has asked: it begins anew. Empty if it is too large."""
    params = {key: raw for key, raw in params.items() if key not in ("requestState", "inputResponses")}
    size = sum(len(memoryview(raw)) for raw in params.values())
    data = encode(StoredCall(params, context, is_legacy)) if size <= MAX_BYTES else b""
    return data if len(data) <= MAX_BYTES else b""


def following(request: bytes, followed: FollowedCall) -> bytes:
    """Return the bytes of a call, `request`, that its server has made a task of. Empty if that is too large: then no
    later owner follows the task."""
    if max(len(followed.task.id), len(followed.task.created_at)) > MAX_ID_CHARS:
        return b""
    data = encode(msgspec.structs.replace(StoredCall.read(request), followed=followed))
    return data if len(data) <= MAX_BYTES else b""


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
        """Return one answer to each question."""
        recorded = cls()
        for digest, answer in answers.items():
            recorded.add(digest, msgspec.Raw(answer.encode()))
        return recorded

    def add(self, digest: str, answer: msgspec.Raw) -> None:
        """Record the answer to a question."""
        self._answers.setdefault(digest, []).append(answer.copy())  # a slice would keep the whole message in memory

    def take(self, digest: str) -> str | None:
        """Return the next answer to such a question; None if it has to be asked. Each is returned once."""
        known = self._answers.get(digest)
        return bytes(known.pop(0)).decode() if known else None

    def encoded(self, most_bytes: int) -> bytes:
        """Return all answers, for a record. Empty if there are none, or if they are larger than that: they are asked
        again."""
        data = encode(self._answers) if self._answers else b""
        return data if len(data) <= most_bytes else b""


def answered(data: bytes, questions: Mapping[str, InputRequest], responses: Object) -> RecordedAnswers:
    """Return the recorded answers of `data` with those that a client gives to these questions now, by their keys."""
    recorded = RecordedAnswers(data)
    for key, question in questions.items():
        if key in responses:
            recorded.add(question.digest, responses[key])
    return recorded
