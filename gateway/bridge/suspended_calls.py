"""Calls of modern clients to legacy servers that ask something back: the call stays parked while its client is asked.

A server's request ends the client's POST with `input_required` (MCP 2026-07-28, Multi Round-Trip Requests). The client
comes back with the answers and our sealed state, which names the parked call and the round; each round is good once.
"""

import asyncio
import hashlib
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.errors import CALL_TIMED_OUT, UNREAD
from gateway.protocol.capabilities import may_be_asked
from gateway.protocol.methods import MAY_ASK
from transports.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    InvalidMessage,
    Message,
    Object,
    encode,
)
from transports.reply_queue import MAX_QUEUED_BYTES

if TYPE_CHECKING:
    from gateway.calls.conversation import Conversation
    from gateway.calls.exchange import Exchange
    from gateway.calls.live_session import LiveSession

__all__ = [
    "SuspendedCall",
    "answer_suspended",
    "ask_modern",
    "question_digest",
    "withdraw_suspended",
]

MAX_SUSPENDED: Final = 64
"""Calls of one session that may wait for their client."""

MAX_QUESTIONS: Final = 32
"""What a server may ask during one call without getting an answer."""

_UNCLEAR_FOR_S: Final = 0.5
"""On stdio a question does not say which call it belongs to. It waits this long for the other calls to end."""


_GATHER_S: Final = 0.02
"""What a server asks at the same time is put to the client at once."""


class Question:
    """A request of the server's that the client has yet to answer."""

    __slots__ = ("conversation", "digest", "method", "params", "server_id", "size")

    def __init__(self, conversation: "Conversation", server_id: bytes, method: str, params: Object) -> None:
        self.conversation = conversation
        self.server_id = server_id
        self.method = method
        # Copies: what was cut out of a message keeps all of it.
        self.params = {name: raw.copy() for name, raw in params.items()}
        self.size = sum(len(memoryview(raw)) for raw in params.values())
        self.digest = question_digest(method, params)


class SuspendedCall:
    """What a call has asked of its client. `turn` counts the rounds, `answers` what was answered, by question."""

    def __init__(self) -> None:
        self.call = secrets.token_urlsafe(12)
        self.turn = 0
        self.is_waiting = False
        self.is_gathering = False
        self.questions: dict[str, Question] = {}
        self.answers: dict[str, str] = {}
        self._last = 0

    def add(self, question: Question) -> None:
        self._last += 1
        self.questions[f"q{self._last}"] = question

    def requests(self) -> Object:
        """As `inputRequests`."""
        return {
            key: msgspec.Raw(encode({"method": question.method, "params": question.params}))
            for key, question in self.questions.items()
        }

    def asked(self) -> dict[str, str]:
        """The digest of each question, by its key."""
        return {key: question.digest for key, question in self.questions.items()}


def question_digest(method: str, params: Object) -> str:
    """The same for identical questions: what an earlier answer may be given to again."""
    plain = {key: value for key, value in params.items() if key not in ("_meta", "elicitationId")}
    text = msgspec.json.encode([method, msgspec.json.decode(encode(plain))], order="sorted")
    return hashlib.sha256(text).hexdigest()[:24]


def ask_modern(live: "LiveSession", conversation: "Conversation", message: Message, *, unclear: bool = True) -> None:
    """Put a legacy server's request to the modern client whose call it belongs to. It is answered whatever it is."""
    try:
        _ask(live, conversation, message, unclear=unclear)
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        conversation.refuse(encode(message.id), INVALID_PARAMS, f"The request cannot be read: {error}")


def _ask(live: "LiveSession", conversation: "Conversation", message: Message, *, unclear: bool) -> None:
    server_id, method = encode(message.id), str(message.method)
    calls = [e for e in conversation.calls.sent.values() if e.method in MAY_ASK]
    active = [e for e in calls if not e.is_suspended]
    if not calls:
        reason = f"{method} can be asked during a call only, and no call is in progress."
        conversation.refuse(server_id, METHOD_NOT_FOUND, reason)
        return
    if len(active) > 1 and unclear:
        _wait_for_others(live, conversation, message)
        return
    exchange = active[0] if active else calls[0]
    question = Question(conversation, server_id, method, without_modern_gaps(method, message.params_object()))
    if exchange.caller is None or not may_be_asked(exchange.caller.capabilities, method, question.params):
        conversation.refuse(server_id, METHOD_NOT_FOUND, f"The client has not declared that it answers {method}.")
        return
    known = exchange.replay.get(question.digest)
    if known is not None:
        exchange.replay = {digest: answer for digest, answer in exchange.replay.items() if digest != question.digest}
        _give(question, msgspec.Raw(known.encode()))
        return
    if not _may_wait(live, exchange, question):
        conversation.refuse(server_id, UNREAD, "Too many requests wait for this client already.")
        return
    if exchange.suspended is None:
        exchange.suspended = SuspendedCall()
        live.suspended[exchange.suspended.call] = exchange
        _forget_ended(live)
    exchange.suspended.add(question)
    if not exchange.is_suspended and not exchange.suspended.is_gathering:
        exchange.suspended.is_gathering = True
        asyncio.get_running_loop().call_later(_GATHER_S, _gathered, exchange)


def _wait_for_others(live: "LiveSession", conversation: "Conversation", message: Message) -> None:
    size = 0 if isinstance(message.params, msgspec.UnsetType) else len(memoryview(message.params))
    if len(live.unclear) >= MAX_QUESTIONS or sum(live.unclear) + size > MAX_QUEUED_BYTES:
        conversation.refuse(encode(message.id), UNREAD, "Too many requests wait for other calls to end already.")
        return
    live.unclear.append(size)

    def again() -> None:
        live.unclear.remove(size)
        ask_modern(live, conversation, message, unclear=False)

    asyncio.get_running_loop().call_later(_UNCLEAR_FOR_S, again)


def _may_wait(live: "LiveSession", exchange: "Exchange", question: Question) -> bool:
    # Those that have ended wait for nothing but to be asked about.
    waiting = sum(1 for other in live.suspended.values() if other.is_suspended and not other.replies.is_closed)
    asked = 0 if exchange.suspended is None else len(exchange.suspended.questions)
    held = sum(
        q.size for other in live.suspended.values() if other.suspended for q in other.suspended.questions.values()
    )
    return waiting < MAX_SUSPENDED and asked < MAX_QUESTIONS and held + question.size <= MAX_QUEUED_BYTES


def _forget_ended(live: "LiveSession") -> None:
    """Calls that have ended are known by their names for a while, so that no round of theirs begins anew."""
    ended = [name for name, exchange in live.suspended.items() if exchange.replies.is_closed]
    for name in ended[:-MAX_SUSPENDED]:
        del live.suspended[name]


def _gathered(exchange: "Exchange") -> None:
    suspended, conversation = exchange.suspended, exchange.conversation
    assert suspended is not None
    suspended.is_gathering = False
    if suspended.questions and conversation is not None and conversation.calls.is_sent(exchange):
        put_questions(exchange, conversation.deadlines.suspended_s)


def without_modern_gaps(method: str, params: Object) -> Object:
    """A question as the modern era has it: an elicitation has no id of its own there, and no task."""
    drop = {"elicitationId", "task"} if method == "elicitation/create" else {"task"}
    return {key: value for key, value in params.items() if key not in drop}


def put_questions(exchange: "Exchange", suspend_s: float) -> None:
    """End the client's present POST with what the server wants to know."""
    suspended = exchange.suspended
    assert suspended is not None
    suspended.turn += 1
    suspended.is_waiting = True
    exchange.suspended_until = monotonic() + suspend_s
    exchange.suspend(
        {
            "resultType": msgspec.Raw(b'"input_required"'),
            "inputRequests": msgspec.Raw(encode(suspended.requests())),
        }
    )


def answer_suspended(exchange: "Exchange", responses: Object) -> None:
    """Give the server what the client has brought; ask again for what is missing."""
    suspended = exchange.suspended
    assert suspended is not None
    suspended.turn += 1  # what was sealed for the round that ends here is used up
    suspended.is_waiting = False
    for key, question in list(suspended.questions.items()):
        if key in responses:
            del suspended.questions[key]
            suspended.answers[question.digest] = bytes(responses[key]).decode()
            _give(question, responses[key])
    exchange.heard()
    if suspended.questions and exchange.conversation is not None:
        put_questions(exchange, exchange.conversation.deadlines.suspended_s)


def _give(question: Question, response: msgspec.Raw) -> None:
    question.conversation.answer(question.server_id, Message(jsonrpc="2.0", id=0, result=response))


def withdraw_suspended(live: "LiveSession", conversation: "Conversation", server_id: bytes | None) -> None:
    """The server needs that answer no more; None: none of its answers."""
    for exchange in live.suspended.values():
        questions = {} if exchange.suspended is None else exchange.suspended.questions
        for key, question in list(questions.items()):
            if question.conversation is conversation and server_id in (None, question.server_id):
                del questions[key]


def give_up_suspended(exchange: "Exchange", conversation: "Conversation") -> None:
    """The client did not come back: the server hears that, in the words each request has for it."""
    suspended = exchange.suspended
    assert suspended is not None
    for question in suspended.questions.values():
        if question.method == "elicitation/create":
            _give(question, msgspec.Raw(b'{"action":"cancel"}'))
        else:
            conversation.refuse(question.server_id, INTERNAL_ERROR, "The client did not answer in time.")
    suspended.questions.clear()
    conversation.cancel(exchange, "the client did not come back with its answers in time", CALL_TIMED_OUT)
