"""The rounds in which a modern server asks during a task: its questions are results, and the answers a repeated call.

MCP 2026-07-28, Multi Round-Trip Requests. A legacy server that wants the user to visit a URL first has the same form
(`gateway.bridge.legacy_server`).
"""

import asyncio
from time import monotonic
from typing import Final

import msgspec

from gateway.bridge.suspended_calls import without_modern_gaps
from gateway.calls.conversation import Conversation
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.failed_start import fail_start
from gateway.calls.live_session import live_session_of
from gateway.calls.suspended_call import InputRequest
from gateway.errors import CALL_TIMED_OUT, OUTCOME_UNKNOWN
from gateway.observability.logs import CORRELATION
from gateway.protocol.capabilities import may_be_asked
from gateway.tasks.exchange import TaskExchange, TaskWork
from transports.era import LEGACY
from transports.jsonrpc import INTERNAL_ERROR, InvalidMessage, Message, Object, decode_object, encode

__all__ = ["MAX_ROUNDS", "Rounds", "conversation_of"]

MAX_ROUNDS: Final = 32
"""How often a server may ask during one task. A task may take hours, so more often than during a call."""

_POLL_S: Final = 1.0
"""How long to wait before a call is repeated whose result asks nothing and only gives a state."""


class Rounds:
    """The rounds of one task. To its questions, this is the server (`gateway.calls.suspended_call.AskingServer`)."""

    def __init__(self, exchange: TaskExchange, work: TaskWork) -> None:
        self._exchange = exchange
        self._work = work
        self._count = 0
        self._since = monotonic()  # when the client was last asked, or has answered
        self._more: Object = {}
        self._answers: Object = {}
        self._wanted = 0

    def ask(self, result: Object) -> None:
        """Ask the client what the server's result asks for."""
        try:
            self._ask(result)
        except (InvalidMessage, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._exchange.fail(INTERNAL_ERROR, f"The server's questions cannot be read: {error}")

    def _ask(self, result: Object) -> None:
        exchange = self._exchange
        live = live_session_of(exchange)
        assert live is not None and exchange.caller is not None
        questions = [self._question(key, raw) for key, raw in _object(result, "inputRequests").items()]
        if questions:
            self._count += 1
            self._since = monotonic()
        if self._count > MAX_ROUNDS:
            exchange.fail(INTERNAL_ERROR, f"The server asked for input more than {MAX_ROUNDS} times.")
            return
        if monotonic() - self._since > self._work.call_s:  # each repetition begins the call's own deadline anew
            exchange.fail(CALL_TIMED_OUT, f"The server did not complete the call within {self._work.call_s:g} s.")
            return
        for question in questions:
            if not may_be_asked(exchange.caller.capabilities, question.method, question.params or {}):
                exchange.fail(
                    INTERNAL_ERROR, f"The server asked {question.method}, which the client has not declared to answer."
                )
                return
        self._more = {"requestState": result["requestState"].copy()} if "requestState" in result else {}
        self._answers = {}
        self._wanted = len(questions)
        self._wait(ExchangeEvent.ASK if questions else ExchangeEvent.REQUEUE)
        if not questions:
            asyncio.get_running_loop().call_later(_POLL_S, self._again)
            return
        for question in questions:
            if not live.questions.suspend(exchange, question):
                exchange.cancel("too many questions wait for this client already")
                return
        exchange.suspendable().ask_until(monotonic() + self._work.answer_s)
        self._work.asks()

    def _question(self, key: str, raw: msgspec.Raw) -> InputRequest:
        asked = decode_object(raw, "an input request")
        method = msgspec.json.decode(asked.get("method", b"null"), type=str)
        return InputRequest(self, encode(key), method, without_modern_gaps(method, _object(asked, "params")))

    def _wait(self, event: ExchangeEvent) -> None:
        """Keep the call in flight: the server has answered, and will be called again."""
        conversation_of(self._exchange).wait(self._exchange, event)

    # -- as the server that has asked

    def answer(self, request_id: bytes, message: Message) -> None:
        """One answer. The call is repeated once all have come."""
        if not isinstance(message.result, msgspec.Raw):
            return
        self._answers[msgspec.json.decode(request_id, type=str)] = message.result.copy()
        if len(self._answers) == self._wanted and not self._exchange.is_over:
            self._more |= {"inputResponses": msgspec.Raw(encode(self._answers))}
            # In the next turn of the loop: the caller notes the answers first.
            asyncio.get_running_loop().call_soon(self._repeat)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """The client has not answered in time: the caller cancels the call."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: the server waits for no progress."""

    def _repeat(self) -> None:
        if not self._exchange.is_over:
            self._since = monotonic()
            self._wait(ExchangeEvent.REQUEUE)
            self._again()

    def _again(self) -> None:
        if not self._exchange.is_over:
            conversation_of(self._exchange).in_background(self._send())

    async def _send(self) -> None:
        exchange = self._exchange
        if exchange.is_over or exchange.request is None:
            return
        CORRELATION.set(exchange.correlation)  # of this task
        conversation, (params, meta) = conversation_of(exchange), exchange.request
        more = {} if conversation.era is LEGACY else self._more
        try:
            await conversation.start(exchange, params | more, meta)
        except Exception as error:  # nobody else would end the task
            fail_start(conversation, exchange, error, OUTCOME_UNKNOWN)


def conversation_of(exchange: TaskExchange) -> Conversation:
    """The conversation of a call, which itself names only what it needs of that."""
    assert isinstance(exchange.conversation, Conversation)
    return exchange.conversation


def _object(outer: Object, name: str) -> Object:
    return decode_object(outer.get(name, msgspec.Raw(b"{}")), name)
