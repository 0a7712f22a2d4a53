"""A task that a modern server makes of a call of which the gateway has made a task before: the gateway follows it.

The client has one handle already. Whatever the server's task comes to is the outcome of the call.
"""

from collections.abc import Mapping, Set

import msgspec

from gateway.bridge.task_follower import TaskFollower
from gateway.calls.conversation import Conversation
from gateway.calls.lifecycles import ExchangeEvent
from gateway.protocol.questions import Question
from gateway.protocol.tasks import with_tasks
from gateway.tasks.asking import ResultAsker, ask_client, may_ask
from gateway.tasks.exchange import TaskExchange, TaskWork
from transports.jsonrpc import Message, Object, encode

__all__ = ["ServerTask"]


class ServerTask(ResultAsker, TaskFollower):
    """The server's task of one call. To its questions, this is the server (`AskingServer`)."""

    _exchange: TaskExchange

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

    def _progress(self, message: object) -> None:
        """The message of the client's task stays as it is."""

    def _ask(self, questions: Mapping[str, Question]) -> None:
        if may_ask(self._exchange, questions):
            if not self._exchange.is_suspended:
                self._exchange.step(ExchangeEvent.ASK)
            ask_client(self, self._exchange, self._work, questions)

    def _withdraw(self, keys: Set[str]) -> None:
        for key in keys:
            self._exchange.suspendable().withdraw(self, encode(key))

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send one answer on. An error of the client ends the call: no error can be passed to the server."""
        if isinstance(message.result, msgspec.Raw):
            self._answered(msgspec.json.decode(request_id, type=str), message.result)
        else:
            self._end(message)
