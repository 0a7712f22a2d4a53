"""Suspend a modern client's call while its legacy server waits for an answer of the client.

A request of the server ends the client's POST with `input_required` (MCP 2026-07-28, Multi Round-Trip Requests). The
client sends another POST with its answers and the gateway's `requestState`, which names the suspended call and the
round. A state is valid for one round. `gateway.calls.questions_to_client` stores and limits the open questions.
"""

import asyncio
from time import monotonic
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.questions_to_client import TOO_MANY
from gateway.calls.suspended_call import InputRequest, SuspendedCall
from gateway.errors import UNREAD
from gateway.protocol.client_capabilities import refusal
from gateway.protocol.methods import MAY_ASK
from transports.era import Era
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, InvalidMessage, Message, Object, encode

_UNCLEAR_FOR_S: Final = 0.5
"""Seconds that a question waits if it may belong to several calls: some of them may end meanwhile. On stdio, questions
do not name their call."""

_GATHER_S: Final = 0.02
"""Seconds in which a server's questions are collected, so that the client gets them together."""


def ask_modern(live: LiveSession, conversation: Conversation, message: Message, call: Exchange | None) -> None:
    """Ask a modern client a question of a legacy server, in one of the client's calls to that server, or answer the
    question with an error. `message` is the server's request, which has the question. `call` is the call that the
    request names; None if it names none."""
    _ServerRequest(live, conversation, message, call).ask(can_wait=call is None)


class _ServerRequest:
    """Ask a client what a legacy server requests during one of the client's calls. The server gets one answer.

    On stdio, the request does not name its call. It may belong to any call of its session that was in flight when it
    came (`_among`, by request id). The gateway asks in one of these calls, and when that call ends, in the next.
    """

    __slots__ = ("_among", "_call", "_conversation", "_is_answered", "_live", "_message")

    def __init__(self, live: LiveSession, conversation: Conversation, message: Message, call: Exchange | None) -> None:
        self._live, self._conversation, self._call = live, conversation, call
        sent = conversation.calls.sent  # of all sessions, if they share the server
        self._among = [number for number, e in sent.items() if e.live is live and e.method in MAY_ASK]
        self._message = message
        self._is_answered = False

    def ask(self, *, can_wait: bool = False) -> None:
        """Ask the client, or answer the server's request with an error. `can_wait`: if the request may belong to
        several calls, first wait for some of them to end."""
        try:
            self._ask(can_wait=can_wait)
        except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
            self._refuse(INVALID_PARAMS, f"The request cannot be read: {error}")

    def mark_answered(self) -> bool:
        """Mark the request as answered. Return False if it was answered before."""
        was_answered, self._is_answered = self._is_answered, True
        return not was_answered

    def move(self) -> bool:
        """Ask in the next call to which the request may belong, and return True. Return False if there is no such call,
        or the request was answered."""
        if self._is_answered or not self._calls():
            return False
        self.ask()
        return True

    def _calls(self) -> list[Exchange]:
        sent = self._conversation.calls.sent
        return [sent[number] for number in self._among if number in sent and not sent[number].is_over]

    def _refuse(self, code: int, reason: str) -> None:
        if self.mark_answered():
            self._conversation.refuse(encode(self._message.id), code, reason)

    def _ask(self, *, can_wait: bool) -> None:
        live, conversation, message = self._live, self._conversation, self._message
        method, calls = str(message.method), self._calls()
        if not calls:
            self._refuse(METHOD_NOT_FOUND, f"{method} can be asked during a call only, and no call is in progress.")
            return
        active = [e for e in calls if not e.is_suspended]
        if can_wait and len(active) > 1:
            self._wait_for_others()
            return
        exchange = self._call if self._call in calls else active[0] if active else calls[0]
        if exchange.declaration is None and live.session.era != Era.MODERN:
            live.questions.ask(conversation, message, exchange)
            return
        question = self._question(method, exchange)
        declared = b"{}" if exchange.declaration is None else exchange.declaration.capabilities
        if refused := refusal(declared, method, question.params or {}):
            self._refuse(*refused)
            return
        known = exchange.take_replay(question.digest)
        if known is not None:
            question.answer(msgspec.Raw(known.encode()))
        elif not live.questions.suspend(exchange, question):
            self._refuse(UNREAD, TOO_MANY)
        elif not exchange.is_suspended and exchange.suspendable().gather():
            asyncio.get_running_loop().call_later(_GATHER_S, _gathered, conversation, exchange)

    def _question(self, method: str, exchange: Exchange) -> InputRequest:
        """Return the question in the form for the client of `exchange`. For a modern client, the members that its era
        does not have are removed. For a legacy client that waits for a task (MCP 2025-11-25), only the member `task` is
        removed."""
        message, moves = self._message, self._call is None and len(self._among) > 1
        if moves and isinstance(message.params, msgspec.Raw):
            # A copy for the next call: a slice would keep the whole message in memory.
            self._message = message = replace(message, params=message.params.copy())
        params = None if message.params is msgspec.UNSET else message.params_object()
        if params is not None:
            params = without_modern_gaps(method, params) if exchange.era == "modern" else without_task(params)
        return InputRequest(self._conversation, encode(message.id), method, params, self if moves else None)

    def _wait_for_others(self) -> None:
        params = self._message.params
        size = 0 if isinstance(params, msgspec.UnsetType) else len(memoryview(params))
        if not self._live.questions.hold_unclear(size):
            self._refuse(UNREAD, "Too many requests already wait for other calls to end.")
            return

        def again() -> None:
            self._live.questions.release_unclear(size)
            if self._conversation.calls.has_question(encode(self._message.id)):  # else the server has cancelled it
                self.ask()

        asyncio.get_running_loop().call_later(_UNCLEAR_FOR_S, again)


def _gathered(conversation: Conversation, exchange: Exchange) -> None:
    suspended = exchange.suspendable()
    suspended.gathered()
    if suspended.questions and conversation.calls.is_sent(exchange):
        _suspend(exchange)


def without_modern_gaps(method: str, params: Object) -> Object:
    """Return the params of a question without the members that MCP 2026-07-28 does not have: `task`, and an
    elicitation's id."""
    plain = without_task(params)
    if method == "elicitation/create":
        plain.pop("elicitationId", None)
    return plain


def without_task(params: Object) -> Object:
    """Return the params of a question without `task`: with it, the client would answer with a task."""
    return {key: value for key, value in params.items() if key != "task"}


def _suspend(exchange: Exchange) -> None:
    """Answer the client's open request with `input_required`, which has the server's open questions. The call then
    waits for the client's next request."""
    suspended, conversation = exchange.suspended, exchange.conversation
    assert suspended is not None and conversation is not None
    suspended.ask_until(monotonic() + conversation.deadlines.suspended_s)
    exchange.suspend(
        {
            "resultType": msgspec.Raw(b'"input_required"'),
            "inputRequests": msgspec.Raw(encode(suspended.requests())),
        }
    )


def answer_suspended(exchange: Exchange, responses: Object) -> None:
    """Pass the client's answers to the questions of a suspended call on to the server. `responses` has the answers by
    the keys of the questions. If answers are missing, ask the client again for these."""
    suspended = exchange.suspended
    assert suspended is not None
    exchange.client_answered()
    suspended.take_answers(responses)
    _go_on(exchange, suspended)


def refuse_suspended(exchange: Exchange, key: str, error: Message) -> None:
    """Answer the question `key` of a suspended call with the client's error. If the call goes on and has other open
    questions, ask the client for these again."""
    suspended = exchange.suspended
    assert suspended is not None
    exchange.client_answered()
    suspended.take_error(key, error)
    _go_on(exchange, suspended)


def _go_on(exchange: Exchange, suspended: SuspendedCall) -> None:
    exchange.restart_deadline()
    if suspended.questions and exchange.conversation is not None and not exchange.is_over:
        _suspend(exchange)
