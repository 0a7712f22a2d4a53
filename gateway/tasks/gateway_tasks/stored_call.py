"""Encode the call of a task for the store, so that the next owner can continue it with the same rights. Pure: no I/O.

If a replica dies, the calls of its tasks may be sent again. The server then asks its questions again, and gets the
recorded answers, so that people are asked only once.
"""

from collections.abc import Mapping

import msgspec

from gateway.calls.suspended_call import InputRequest
from gateway.protocol.client_capabilities import ClientDeclaration
from gateway.protocol.tasks import MAX_ID_CHARS, TaskAtServer
from session_store import Context
from transports.jsonrpc import Object, encode

PART_BYTES = 1 << 20
"""Maximum bytes of a task's result, error, questions or answers. As large as the event that SDK clients take, and a
store with thousands of tasks stays small."""

MAX_BYTES = 256 << 10
"""Maximum bytes of a stored call. A larger call is not stored, so the next owner can neither send it again nor follow
it."""


class FollowedCall(msgspec.Struct, frozen=True):
    """Holds what the next owner needs to follow the task that a server has created for a call."""

    task: TaskAtServer
    caller: ClientDeclaration | None
    """The capabilities that the client has declared; None if it has not sent them with the call."""


class StoredCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds the call of a task as the store keeps it, so that the next owner can continue it."""

    params: Object
    """The params of the client's call, with `_meta`. Empty if the call must not be sent again."""
    context: Context
    """The rights of the call. Its session may have more rights when the call is sent again."""
    is_legacy: bool = False
    """The client's protocol version is before 2026-07-28."""
    followed: FollowedCall | None = None
    """The task that the server has created for the call; None if it has created none."""

    @classmethod
    def read(cls, data: bytes) -> "StoredCall":
        """Decode a call that `stored` or `following` has encoded. Raises `msgspec.MsgspecError`: `data` is no such
        call."""
        return msgspec.json.decode(data, type=cls)


def stored(params: Object, context: Context, *, is_legacy: bool = False) -> bytes:
    """Return a call, encoded for the store, without `requestState` and the client's answers, because the call will
    begin anew. Return empty bytes if the encoded call would have more than `MAX_BYTES`."""
    params = {key: raw for key, raw in params.items() if key not in ("requestState", "inputResponses")}
    size = sum(len(memoryview(raw)) for raw in params.values())
    data = encode(StoredCall(params, context, is_legacy)) if size <= MAX_BYTES else b""
    return data if len(data) <= MAX_BYTES else b""


def following(request: bytes, followed: FollowedCall) -> bytes:
    """Return the encoded call `request` with the task that its server has created. Return empty bytes if the id or the
    creation time of that task is too long, or the whole is: then the next owner cannot follow the task."""
    if max(len(followed.task.id), len(followed.task.created_at)) > MAX_ID_CHARS:
        return b""
    data = encode(msgspec.structs.replace(StoredCall.read(request), followed=followed))
    return data if len(data) <= MAX_BYTES else b""


class RecordedAnswers:
    """Records the answers of a client to the questions of a call, each under the digest of its question
    (`gateway.calls.suspended_call.question_digest`). Several answers to equal questions stay in order. `data` is what
    `encoded` has returned; data of another version counts as no answers."""

    def __init__(self, data: bytes = b"") -> None:
        try:
            self._answers = msgspec.json.decode(data or b"{}", type=dict[str, list[msgspec.Raw]])
        except (msgspec.MsgspecError, RecursionError):
            self._answers = {}

    @classmethod
    def of(cls, answers: Mapping[str, str]) -> "RecordedAnswers":
        """Return a record of `answers`, which has one answer (JSON) for each question, by the digest of the
        question."""
        recorded = cls()
        for digest, answer in answers.items():
            recorded.add(digest, msgspec.Raw(answer.encode()))
        return recorded

    def add(self, digest: str, answer: msgspec.Raw) -> None:
        self._answers.setdefault(digest, []).append(answer.copy())  # a slice would keep the whole message in memory

    def take(self, digest: str) -> str | None:
        """Remove and return the next answer (JSON) to the question with this digest. None if there is none."""
        known = self._answers.get(digest)
        return bytes(known.pop(0)).decode() if known else None

    def encoded(self) -> bytes:
        """Return all answers as JSON, for the task's record. Return empty bytes if there are no answers, or if they
        exceed `PART_BYTES`. In the latter case, the client is asked again when the call runs again."""
        data = encode(self._answers) if self._answers else b""
        return data if len(data) <= PART_BYTES else b""


def answered(data: bytes, questions: Mapping[str, InputRequest], responses: Object) -> RecordedAnswers:
    """Return the answers recorded in `data` together with the client's new answers, `responses`. The key of each
    response is that of its question in `questions`."""
    recorded = RecordedAnswers(data)
    for key, question in questions.items():
        if key in responses:
            recorded.add(question.digest, responses[key])
    return recorded
