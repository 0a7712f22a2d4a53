"""Encode the call of a task for the store, so that a later owner can continue it with the same rights. Pure: no I/O.

If a gateway dies, its tasks may run again. The server then asks its questions again, and gets the recorded answers. So
people are asked only once.
"""

from collections.abc import Mapping

import msgspec

from gateway.calls.suspended_call import InputRequest
from gateway.protocol.capabilities import ClientDeclaration
from gateway.protocol.tasks import MAX_ID_CHARS, TaskAtServer
from session_store import Context
from transports.jsonrpc import Object, encode

MAX_BYTES = 256 << 10
"""Limit on the bytes of a stored call. A larger one does not run again, and its server's task is not followed."""


class FollowedCall(msgspec.Struct, frozen=True):
    """The task that a server has made of the call. `caller` has the client's declared capabilities, if the client has
    sent them with the call."""

    task: TaskAtServer
    caller: ClientDeclaration | None


class StoredCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The params that the client has sent, including `_meta`, and the context (rights) of its request. The session's
    context may change before the call runs again, and may grant more. `params` is empty if the call cannot run again.
    `is_legacy`: the client's protocol version is before 2026-07-28."""

    params: Object
    context: Context
    is_legacy: bool = False
    followed: FollowedCall | None = None

    @classmethod
    def read(cls, data: bytes) -> "StoredCall":
        """Decode a call that `stored` or `following` has encoded. Raises `msgspec.MsgspecError`: it cannot be read."""
        return msgspec.json.decode(data, type=cls)


def stored(params: Object, context: Context, *, is_legacy: bool = False) -> bytes:
    """Encode a call for the store, without answers to its questions: it begins anew. Empty if beyond `MAX_BYTES`."""
    params = {key: raw for key, raw in params.items() if key not in ("requestState", "inputResponses")}
    size = sum(len(memoryview(raw)) for raw in params.values())
    data = encode(StoredCall(params, context, is_legacy)) if size <= MAX_BYTES else b""
    return data if len(data) <= MAX_BYTES else b""


def following(request: bytes, followed: FollowedCall) -> bytes:
    """Return `request`, an encoded call, with the task that its server has made of it. Empty if that is too large: then
    no later owner follows the task."""
    if max(len(followed.task.id), len(followed.task.created_at)) > MAX_ID_CHARS:
        return b""
    data = encode(msgspec.structs.replace(StoredCall.read(request), followed=followed))
    return data if len(data) <= MAX_BYTES else b""


class RecordedAnswers:
    """Keeps answers by the digests of their questions (`gateway.calls.suspended_call.question_digest`), those to equal
    questions in order. `data` comes from `encoded`; empty or another version's data has no answers."""

    def __init__(self, data: bytes = b"") -> None:
        try:
            self._answers = msgspec.json.decode(data or b"{}", type=dict[str, list[msgspec.Raw]])
        except (msgspec.MsgspecError, RecursionError):
            self._answers = {}

    @classmethod
    def of(cls, answers: Mapping[str, str]) -> "RecordedAnswers":
        """Return the record of one answer (JSON) for each question, given by its digest."""
        recorded = cls()
        for digest, answer in answers.items():
            recorded.add(digest, msgspec.Raw(answer.encode()))
        return recorded

    def add(self, digest: str, answer: msgspec.Raw) -> None:
        """Record the answer to the question with that digest."""
        self._answers.setdefault(digest, []).append(answer.copy())  # a slice would keep the whole message in memory

    def take(self, digest: str) -> str | None:
        """Remove and return the next answer (JSON) to the question with that digest. None: it has to be asked."""
        known = self._answers.get(digest)
        return bytes(known.pop(0)).decode() if known else None

    def encoded(self, most_bytes: int) -> bytes:
        """Return all answers as JSON, for the task's record. Empty if there are none, or if they are larger than
        `most_bytes`: then the questions are asked again."""
        data = encode(self._answers) if self._answers else b""
        return data if len(data) <= most_bytes else b""


def answered(data: bytes, questions: Mapping[str, InputRequest], responses: Object) -> RecordedAnswers:
    """Return the recorded answers in `data`, with the client's `responses` to `questions`, both by the same keys."""
    recorded = RecordedAnswers(data)
    for key, question in questions.items():
        if key in responses:
            recorded.add(question.digest, responses[key])
    return recorded
