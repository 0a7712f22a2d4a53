"""Define a suspended call: its questions to a modern client, and the client's answers.

This module knows neither calls nor the limits for questions (`gateway.calls.questions_to_client`). No I/O.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from transports.jsonrpc import (
    INTERNAL_ERROR,
    Message,
    Object,
    RequestId,
    encode,
    encode_error,
    encode_notification,
    encode_result,
    parse,
    splice,
)
from transports.reply_queue import Frame


class AskingServer(Protocol):
    """A server that has asked a client a question. It receives the answer, and progress notifications about the
    question."""

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send the client's answer to the server. `request_id` is the server's own id, as JSON."""

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Answer the server's request with an error of the gateway. `request_id` is the server's own id, as JSON."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Send the server a notification, if there is a link to it."""


class MovingQuestion(Protocol):
    """A server's request that does not name its call. The client is asked in one call after the other to which the
    request may belong, until it answers. `gateway.bridge.call_suspension` describes the methods."""

    def mark_answered(self) -> bool: ...
    def move(self) -> bool: ...


class InputRequest:
    """A question for a modern client, which gets it as an entry of `inputRequests`. `moving` is given if the question
    may belong to one of several calls."""

    __slots__ = ("_moving", "digest", "method", "params", "server", "server_id", "size")

    def __init__(
        self,
        server: AskingServer,
        server_id: bytes,
        method: str,
        params: Object | None,
        moving: MovingQuestion | None = None,
    ) -> None:
        self._moving = moving
        self.server = server
        self.server_id = server_id
        """The id of the server's request, as JSON."""
        self.method = method
        # Copies: a slice of a message would keep the whole message in memory.
        self.params = None if params is None else {name: raw.copy() for name, raw in params.items()}
        """None if the server's request has no params."""
        self.size = sum(len(memoryview(raw)) for raw in (params or {}).values())
        """The bytes of the params."""
        self.digest = question_digest(method, params or {})
        """Equal for identical questions (`question_digest`)."""

    @property
    def with_params(self) -> Mapping[str, Object]:
        """Return the `params` member of the entry; an empty dictionary if the server's request has no params."""
        return {} if self.params is None else {"params": self.params}

    def answer(self, response: msgspec.Raw) -> None:
        """Send the client's result to the server."""
        self.answer_as(Message(jsonrpc="2.0", id=0, result=response))

    def answer_as(self, message: Message) -> None:
        """Send the client's response, a result or an error, to the server. Do nothing if the question may belong to
        several calls, and was answered in another one already."""
        if self._moving is None or self._moving.mark_answered():
            self.server.answer(self.server_id, message)

    def move(self) -> bool:
        """Ask the question in the next call to which it may belong, and return True. Return False if there is no such
        call."""
        return self._moving is not None and self._moving.move()

    def give_up(self) -> None:
        """Answer the server in the client's place (`cancel` or an error), because the client did not answer."""
        if self.method == "elicitation/create":
            self.answer(msgspec.Raw(b'{"action":"cancel"}'))
        elif self._moving is None or self._moving.mark_answered():
            self.server.refuse(self.server_id, INTERNAL_ERROR, "The client did not answer in time.")


def question_digest(method: str, params: Object) -> str:
    """Return a digest of a question. Identical questions have the same digest, so that one answer of the client can
    serve all of them."""
    plain = {key: value for key, value in params.items() if key not in ("_meta", "elicitationId")}
    text = msgspec.json.encode([method, msgspec.json.decode(encode(plain))], order="sorted")
    return hashlib.sha256(text).hexdigest()[:24]


class SuspendedCall:
    """The questions of one call to its modern client, in rounds. A round ends when the client answers."""

    def __init__(self) -> None:
        self.call = secrets.token_urlsafe(12)
        """The name of the call in the gateway's `requestState`."""
        self.turn = 0
        """Increases at the start and the end of each round. A `requestState` is valid for one turn only."""
        self.until = 0.0
        """The monotonic time at which the round ends if the client does not answer."""
        self.is_gathering = False
        self.questions: dict[str, InputRequest] = {}
        """The open questions, by the keys that `inputRequests` has for them."""
        self.answers: dict[str, str] = {}
        """The client's answers of earlier rounds, by the digest of the question."""
        self._last = 0
        self._has_ended = False

    def add(self, question: InputRequest) -> None:
        """Add a question to the round that is being gathered, which the client gets next."""
        self._last += 1
        self.questions[f"q{self._last}"] = question

    def gather(self) -> bool:
        """Record that the round collects further questions, until `gathered`. Return False if it does so already."""
        if self.is_gathering:
            return False
        self.is_gathering = True
        return True

    def gathered(self) -> None:
        """Stop collecting questions for the round, because all have come."""
        self.is_gathering = False

    def ask_until(self, until: float) -> None:
        """Record that a round has begun, in which the client may answer until the monotonic time `until`."""
        self.turn += 1
        self.until = until

    def take_answers(self, responses: Object) -> None:
        """Send the client's answers (`responses`, by the keys of the questions) to the server, and end the round. A
        `requestState` from the round is invalid now."""
        self.turn += 1
        for key, question in list(self.questions.items()):
            if key in responses:
                del self.questions[key]
                self.answers[question.digest] = bytes(responses[key]).decode()
                question.answer(responses[key])

    def take_error(self, key: str, error: Message) -> None:
        """Send the server the client's error response to the question with this key, and end the round."""
        question = self.questions.pop(key, None)
        if question is not None:
            self.turn += 1
            question.answer_as(error)

    def withdraw(self, server: AskingServer, server_id: bytes | None) -> None:
        """Remove the question with this id of the server (JSON), or all questions of the server if `server_id` is
        None."""
        for key, question in list(self.questions.items()):
            if question.server is server and server_id in (None, question.server_id):
                del self.questions[key]

    def give_up(self) -> None:
        """Answer the server's open questions in the client's place, because the client did not answer them."""
        for question in self.questions.values():
            question.give_up()
        self.questions.clear()

    def call_ended(self) -> None:
        """Handle the end of the call: ask its questions in other calls to which they may belong, and give up the rest.
        Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        for key, question in list(self.questions.items()):
            if not question.move():
                self.questions.pop(key, None)
                question.give_up()

    def requests(self) -> Object:
        """Return the open questions in the form of `inputRequests`, which the client gets."""
        return {
            key: msgspec.Raw(encode({"method": question.method, **question.with_params}))
            for key, question in self.questions.items()
        }

    def asked(self) -> dict[str, str]:
        """Return the digests of the open questions, by the keys of the questions."""
        return {key: question.digest for key, question in self.questions.items()}

    @property
    def size(self) -> int:
        """Return the bytes of all open questions together."""
        return sum(question.size for question in self.questions.values())


def rewritten_ids(client_id: RequestId, progress_token: msgspec.Raw | None) -> Callable[[Frame], Frame | None]:
    """Return a function for the messages (frames) of a suspended call that were queued while its client had no open
    request. The function puts `client_id` and `progress_token`, those of the client's new request, in place of the
    earlier ones. It returns None for a progress notification if `progress_token` is None."""

    def change(frame: Frame) -> Frame | None:
        message = parse(frame.data)
        if message.is_response:
            return msgspec.structs.replace(frame, data=response_under(encode(client_id), message))
        if message.method != "notifications/progress":
            return frame
        if progress_token is None:
            return None
        params = message.params_object() | {"progressToken": progress_token}
        return msgspec.structs.replace(frame, data=encode_notification(message.method, splice(encode(params))))

    return change


def response_under(request_id: bytes, message: Message) -> bytes:
    """Return the response in `message` as JSON, with `request_id` (JSON) as its id."""
    if isinstance(message.error, msgspec.Raw):
        return encode_error(request_id, splice(message.error))
    assert isinstance(message.result, msgspec.Raw)
    return encode_result(request_id, splice(message.result))
