"""A task that a modern server makes of a call of which the gateway has made a task before: the gateway follows it.

The client has one handle already. Whatever the server's task comes to is the outcome of the call.
"""

from collections.abc import Set
from time import monotonic

import msgspec

from gateway.bridge.suspended_calls import without_modern_gaps
from gateway.bridge.task_follower import TaskFollower
from gateway.calls.conversation import Conversation
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.live_session import live_session_of
from gateway.calls.suspended_call import InputRequest
from gateway.protocol.capabilities import may_be_asked
from gateway.protocol.tasks import with_tasks
from gateway.tasks.exchange import TaskExchange, TaskWork
from transports.jsonrpc import INTERNAL_ERROR, Message, Object, decode_object, encode

__all__ = ["ServerTask"]


class ServerTask(TaskFollower):
    """The server's task of one call. To its questions, this is the server (`AskingServer`)."""

    def __init__(self, exchange: TaskExchange, work: TaskWork, conversation: Conversation) -> None:
        assert exchange.caller is not None
        super().__init__(conversation, exchange, with_tasks(exchange.caller.meta("")))
        self._work = work

    def _complete(self, result: Object) -> None:
        self._end(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result))))

    def _end_with(self, error: msgspec.Raw) -> None:
        self._end(Message(jsonrpc="2.0", id=0, error=error))

    def _end(self, message: Message) -> None:
        self._conversation.end(self._exchange)
        self._exchange.settle(message)

    def _ask(self, requests: Object) -> None:
        exchange, live = self._exchange, live_session_of(self._exchange)
        assert live is not None and exchange.caller is not None
        for key, raw in requests.items():
            asked = decode_object(raw, "an input request")
            method = msgspec.json.decode(asked.get("method", b"null"), type=str)
            params = decode_object(asked.get("params", b"{}"), "params")
            question = InputRequest(self, encode(key), method, without_modern_gaps(method, params))
            if not may_be_asked(exchange.caller.capabilities, method, params):
                self._fail(INTERNAL_ERROR, f"The server asked {method}, which the client has not declared to answer.")
                return
            if not live.questions.suspend(exchange, question):
                exchange.cancel("too many questions wait for this client already")
                return
        if not exchange.is_suspended:
            exchange.step(ExchangeEvent.ASK)
        exchange.suspendable().ask_until(monotonic() + self._work.answer_s)
        self._work.asks()

    def _withdraw(self, keys: Set[str]) -> None:
        for key in keys:
            self._exchange.suspendable().withdraw(self, encode(key))

    # -- as the server that has asked

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send one answer on."""
        if isinstance(message.result, msgspec.Raw):
            self._answered(msgspec.json.decode(request_id, type=str), message.result)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """The client has not answered in time: the caller cancels the call."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: the server waits for no progress."""
