"""What servers have asked the client of one session, in both eras: where each question waits, and how many may wait.

A legacy client gets a question as a request, on the stream of the call that it belongs to or on its own stream. A
modern client gets it as the result of that call, which is suspended until the client comes back
(`gateway.bridge.suspended_calls` decides which call, and when).
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.errors import CALL_TIMED_OUT, UNREAD
from gateway.protocol.params import meta_of
from transports.jsonrpc import (
    INTERNAL_ERROR,
    Message,
    Object,
    encode,
    encode_notification,
    encode_request,
    splice,
)
from transports.reply_queue import MAX_QUEUED_BYTES

if TYPE_CHECKING:
    from gateway.calls.conversation import Conversation
    from gateway.calls.exchange import Exchange

__all__ = [
    "MAX_QUESTIONS",
    "MAX_QUESTIONS_OF_CALL",
    "MAX_SERVER_ID_BYTES",
    "MAX_SUSPENDED",
    "InputRequest",
    "Questions",
    "SuspendedCall",
    "question_digest",
]

MAX_QUESTIONS: Final = 256
"""Questions of one session that may wait for a legacy client."""

MAX_SUSPENDED: Final = 64
"""Calls of one session that may wait for a modern client."""

MAX_QUESTIONS_OF_CALL: Final = 32
"""Questions of one call that may wait for a modern client."""

MAX_SERVER_ID_BYTES: Final = 1_024
"""The id of a server's request, and the token of its progress, as JSON: each is kept while its client is asked."""


@dataclass(frozen=True, slots=True)
class _ClientRequest:
    """A question that a legacy client has as a request.

    `server_id` is the id of the server's request as JSON, empty for a question that came as the result of a call
    (MCP 2026-07-28). `answered` gets the client's response.
    """

    conversation: "Conversation"
    server_id: bytes
    exchange: "Exchange | None"
    progress_token: msgspec.Raw | None
    answered: Callable[[Message], None]


class InputRequest:
    """A question that a modern client has, or will have, as an entry of `inputRequests`.

    `size` is in bytes. `digest` is the same for identical questions.
    """

    __slots__ = ("conversation", "digest", "method", "params", "server_id", "size")

    def __init__(self, conversation: "Conversation", server_id: bytes, method: str, params: Object) -> None:
        self.conversation = conversation
        self.server_id = server_id
        self.method = method
        # Copies: what was cut out of a message keeps all of it.
        self.params = {name: raw.copy() for name, raw in params.items()}
        self.size = sum(len(memoryview(raw)) for raw in params.values())
        self.digest = question_digest(method, params)

    def answer(self, response: msgspec.Raw) -> None:
        """Send the client's response to the server."""
        self.conversation.answer(self.server_id, Message(jsonrpc="2.0", id=0, result=response))

    def give_up(self) -> None:
        """Answer the server for a client that did not."""
        if self.method == "elicitation/create":
            self.answer(msgspec.Raw(b'{"action":"cancel"}'))
        else:
            self.conversation.refuse(self.server_id, INTERNAL_ERROR, "The client did not answer in time.")


def question_digest(method: str, params: Object) -> str:
    """The same for identical questions: an earlier answer is given again."""
    plain = {key: value for key, value in params.items() if key not in ("_meta", "elicitationId")}
    text = msgspec.json.encode([method, msgspec.json.decode(encode(plain))], order="sorted")
    return hashlib.sha256(text).hexdigest()[:24]


class SuspendedCall:
    """What one call has asked of its modern client. `call` is its name in our `requestState`. `turn` counts the rounds;
    a state is good for one. `answers` are those of earlier rounds, by the digest of the question."""

    def __init__(self) -> None:
        self.call = secrets.token_urlsafe(12)
        self.turn = 0
        self.until = 0.0
        self.is_gathering = False
        self.questions: dict[str, InputRequest] = {}
        self.answers: dict[str, str] = {}
        self._last = 0

    def add(self, question: InputRequest) -> None:
        """One more question, for the next round."""
        self._last += 1
        self.questions[f"q{self._last}"] = question

    def gather(self) -> bool:
        """Begin to wait for further questions of the round. False if that has begun already."""
        if self.is_gathering:
            return False
        self.is_gathering = True
        return True

    def gathered(self) -> None:
        """The round's questions are complete."""
        self.is_gathering = False

    def ask_until(self, until: float) -> None:
        """Begin a round; the client may answer until then, by the monotonic clock."""
        self.turn += 1
        self.until = until

    def take_answers(self, responses: Object) -> None:
        """End a round: the states that were sealed for it are used up. Send the server what the client has answered."""
        self.turn += 1
        for key, question in list(self.questions.items()):
            if key in responses:
                del self.questions[key]
                self.answers[question.digest] = bytes(responses[key]).decode()
                question.answer(responses[key])

    def withdraw(self, conversation: "Conversation", server_id: bytes | None) -> None:
        """The server needs no answer to that request; None: to none of its requests."""
        for key, question in list(self.questions.items()):
            if question.conversation is conversation and server_id in (None, question.server_id):
                del self.questions[key]

    def give_up(self) -> None:
        """The client did not send its answers: answer the server with an error."""
        for question in self.questions.values():
            question.give_up()
        self.questions.clear()

    def requests(self) -> Object:
        """As `inputRequests`."""
        return {
            key: msgspec.Raw(encode({"method": question.method, "params": question.params}))
            for key, question in self.questions.items()
        }

    def asked(self) -> dict[str, str]:
        """The digest of each question, by its key."""
        return {key: question.digest for key, question in self.questions.items()}

    @property
    def size(self) -> int:
        """Bytes of the questions that wait."""
        return sum(question.size for question in self.questions.values())


class Questions:
    """The questions to the client of one session. `tell` puts a frame on the session's own stream."""

    __slots__ = ("_last", "_open", "_tell", "_unclear", "suspended")

    def __init__(self, tell: Callable[[bytes], bool]) -> None:
        self._tell = tell
        self._open: dict[int, _ClientRequest] = {}
        self._last = 0
        self.suspended: dict[str, Exchange] = {}  # calls of a modern client by name; those that ended stay for a while
        self._unclear: list[int] = []  # sizes of questions that may belong to one of several calls

    # -- to a legacy client

    def ask(self, conversation: "Conversation", message: Message, exchange: "Exchange | None") -> None:
        """Put a server's request to the client, on the stream of its call or on the session's own one."""
        server_id = encode(message.id)
        if len(self._open) >= MAX_QUESTIONS:
            conversation.refuse(server_id, UNREAD, "Too many requests already wait for this client.")
            return

        def answered(answer: Message) -> None:
            conversation.answer(server_id, answer)

        params, token = self._with_progress_token(message.params_object())
        question = _ClientRequest(conversation, server_id, exchange, token, answered)
        if not self._put(question, str(message.method), params):
            conversation.refuse(server_id, UNREAD, "The client does not read its messages.")

    def ask_for_result(
        self, exchange: "Exchange", method: str, params: Object, answered: Callable[[Message], None]
    ) -> None:
        """As `ask`, for a question that came as the result of a call."""
        conversation = exchange.conversation
        assert conversation is not None
        if len(self._open) >= MAX_QUESTIONS:
            conversation.cancel(exchange, "too many requests wait for this client already")
            return
        params, token = self._with_progress_token(params)
        if not self._put(_ClientRequest(conversation, b"", exchange, token, answered), method, params):
            conversation.cancel(exchange, "the client does not read its messages")

    def _put(self, question: _ClientRequest, method: str, params: Object) -> bool:
        self._last += 1
        number, exchange = self._last, question.exchange
        self._open[number] = question
        frame = splice(encode_request(number, method, encode(params)))
        if not (self._tell(frame) if exchange is None else exchange.emit(frame)):
            del self._open[number]
            return False
        return True

    def _with_progress_token(self, params: Object) -> tuple[Object, msgspec.Raw | None]:
        """Params with the number of the next question as their progress token; and the token that they had."""
        meta = meta_of(params)
        token = meta.get("progressToken")
        if token is None:
            return params, None
        if len(memoryview(token)) > MAX_SERVER_ID_BYTES:
            del meta["progressToken"]
            return params | {"_meta": msgspec.Raw(encode(meta))}, None
        # A copy: what was cut out of a message keeps all of it.
        token = msgspec.Raw(bytes(token))
        own = msgspec.Raw(encode(self._last + 1))
        return params | {"_meta": msgspec.Raw(encode(meta | {"progressToken": own}))}, token

    def answered(self, message: Message) -> bool:
        """The client's response to one of these requests; False when nobody waits for it (any more)."""
        question = self._open.pop(message.id, None) if isinstance(message.id, int) else None
        if question is None:
            return False
        question.answered(message)
        if question.exchange is not None:
            question.exchange.heard()
        return True

    def asker(self, number: object) -> "tuple[Conversation, msgspec.Raw] | None":
        """Who waits for progress on the question that carried this token, and under which token of its own."""
        question = self._open.get(number) if isinstance(number, int) else None
        if question is None or question.progress_token is None:
            return None
        return question.conversation, question.progress_token

    # -- to a modern client

    @property
    def has_suspended(self) -> bool:
        """Whether a call waits for the client."""
        return any(exchange.is_suspended for exchange in self.suspended.values())

    def suspend(self, exchange: "Exchange", question: InputRequest) -> bool:
        """Add a question to those of its call. False if no more may wait."""
        # Calls that have ended wait for nothing but to be asked about.
        waiting = sum(1 for other in self.suspended.values() if other.is_suspended)
        held = sum(other.suspended.size for other in self.suspended.values() if other.suspended is not None)
        asked = 0 if exchange.suspended is None else len(exchange.suspended.questions)
        if waiting >= MAX_SUSPENDED or asked >= MAX_QUESTIONS_OF_CALL or held + question.size > MAX_QUEUED_BYTES:
            return False
        suspended = exchange.suspendable()
        if suspended.call not in self.suspended:
            self.suspended[suspended.call] = exchange
            self._forget_ended()
        suspended.add(question)
        return True

    def _forget_ended(self) -> None:
        """Calls that have ended are known by their names for a while, so that no round of theirs begins anew."""
        ended = [name for name, exchange in self.suspended.items() if exchange.is_over]
        for name in ended[:-MAX_SUSPENDED]:
            del self.suspended[name]

    def hold_unclear(self, size: int) -> bool:
        """Count a question of that many bytes whose call is not clear yet. False if no more may wait."""
        if len(self._unclear) >= MAX_QUESTIONS_OF_CALL or sum(self._unclear) + size > MAX_QUEUED_BYTES:
            return False
        self._unclear.append(size)
        return True

    def release_unclear(self, size: int) -> None:
        """The question is put now."""
        self._unclear.remove(size)

    # -- their end, in both eras

    def withdraw(self, conversation: "Conversation", params: Object) -> None:
        """The server has cancelled a request of its own: notify the client, by the id that the client knows."""
        server_id = bytes(params.get("requestId", b""))
        if not server_id:
            return
        self._withdraw_suspended(conversation, server_id)
        for number, question in list(self._open.items()):
            if question.conversation is conversation and question.server_id == server_id:
                self._cancel(number, question, params)

    def unask(self, exchange: "Exchange") -> None:
        """A call is over: what came as a result of it needs no answer any more."""
        for number, question in list(self._open.items()):
            if question.exchange is exchange and not question.server_id:
                self._cancel(number, question, {})

    def closed(self, conversation: "Conversation") -> None:
        """A link is gone: nobody waits for the answers to what its server has asked. A question that came as a result
        stays: its answer may be brought to the server's next process."""
        self._withdraw_suspended(conversation, None)
        for number, question in list(self._open.items()):
            if question.conversation is conversation and question.server_id:
                self._cancel(number, question, {})

    def _withdraw_suspended(self, conversation: "Conversation", server_id: bytes | None) -> None:
        for exchange in self.suspended.values():
            if exchange.suspended is not None:
                exchange.suspended.withdraw(conversation, server_id)

    def _cancel(self, number: int, question: _ClientRequest, params: Object) -> None:
        del self._open[number]
        params = params | {"requestId": msgspec.Raw(encode(number))}
        frame = encode_notification("notifications/cancelled", splice(encode(params)))
        if question.exchange is None or not question.exchange.emit(frame):
            self._tell(frame)

    def end(self, reason: str) -> None:
        """The session is over: answer every server that waits, and end the calls that wait for the client."""
        for question in self._open.values():
            if question.server_id:
                question.conversation.refuse(question.server_id, UNREAD, f"{reason.capitalize()}.")
        self._open.clear()
        self.suspended.clear()


def give_up(exchange: "Exchange") -> None:
    """A modern client did not send its answers in time: answer the server with an error, and cancel the call."""
    assert exchange.suspended is not None and exchange.conversation is not None
    exchange.suspended.give_up()
    reason = "the client did not send its answers in time"
    exchange.conversation.cancel(exchange, reason, CALL_TIMED_OUT)
