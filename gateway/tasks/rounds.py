"""The rounds in which a modern server asks during a task: its questions are results, and the answers a repeated call.

MCP 2026-07-28, Multi Round-Trip Requests. A legacy server that wants the user to visit a URL first has the same form
(`gateway.bridge.legacy_server`).
"""

from collections.abc import Mapping
from time import monotonic
from typing import Final

import msgspec

from gateway.bridge.round_trips import RoundTrips
from gateway.calls.conversation import Conversation
from gateway.calls.live_session import LiveSession
from gateway.protocol.questions import Question
from gateway.tasks.asking import ResultAsker, ask_client, may_ask
from gateway.tasks.exchange import TaskExchange, TaskWork
from transports.jsonrpc import INTERNAL_ERROR, InvalidMessage, Message, Object

__all__ = ["MAX_ROUNDS", "Rounds", "conversation_of"]

MAX_ROUNDS: Final = 32
"""How often a server may ask during one task. A task may take hours, so more often than during a call."""


class Rounds(ResultAsker, RoundTrips):
    """The rounds of one task. To its questions, this is the server (`gateway.calls.suspended_call.AskingServer`)."""

    max_rounds = MAX_ROUNDS
    poll_s = 1.0
    _exchange: TaskExchange

    def __init__(self, exchange: TaskExchange, work: TaskWork) -> None:
        assert exchange.request is not None
        conversation, (params, meta) = conversation_of(exchange), exchange.request
        super().__init__(conversation, exchange, params, meta, call_s=work.call_s, since=monotonic())
        self._work = work

    def ask(self, result: Object) -> None:
        """Ask the client what the server's result asks for."""
        try:
            self.begin(result)
        except (InvalidMessage, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._exchange.fail(INTERNAL_ERROR, f"The server's questions cannot be read: {error}")

    def _may_ask(self, questions: Mapping[str, Question]) -> bool:
        return may_ask(self._exchange, questions)

    def _ask(self, live: LiveSession, questions: Mapping[str, Question]) -> None:
        ask_client(self, self._exchange, self._work, questions)

    def answer(self, request_id: bytes, message: Message) -> None:
        """One answer of the client. Its error ends the call: no error can be passed to the server."""
        if isinstance(message.result, msgspec.Raw):
            self._answered(msgspec.json.decode(request_id, type=str), message.result)
        else:
            conversation_of(self._exchange).end(self._exchange)
            self._exchange.settle(message)


def conversation_of(exchange: TaskExchange) -> Conversation:
    """The conversation of a call, which itself names only what it needs of that."""
    assert isinstance(exchange.conversation, Conversation)
    return exchange.conversation
