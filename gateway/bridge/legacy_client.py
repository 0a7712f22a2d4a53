"""Asks a legacy client what a modern server asks by a result or by a task: the client gets requests."""

import functools
from collections.abc import Callable, Mapping

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.questions import Questions
from gateway.protocol.questions import Question, for_legacy_client
from transports.jsonrpc import Message

__all__ = ["ask_legacy_client"]


def ask_legacy_client(
    questions: Questions,
    conversation: Conversation,
    exchange: Exchange,
    asked: Mapping[str, Question],
    answered: Callable[[str, msgspec.Raw], None],
) -> None:
    """Ask the client of a call. `answered` gets each answer, by the key of its question. `questions` are those of the
    client's session."""

    def receive(key: str, message: Message) -> None:
        if isinstance(message.error, msgspec.Raw):
            # The modern era cannot pass an error to the server: the call ends with the client's error.
            conversation.end(exchange)
            exchange.settle(message)
        elif isinstance(message.result, msgspec.Raw):
            answered(key, message.result)

    for key, question in asked.items():
        method, params = for_legacy_client(question)
        questions.ask_for_result(exchange, method, params, functools.partial(receive, key))
