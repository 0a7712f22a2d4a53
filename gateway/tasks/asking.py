"""Asks the client of a task what a modern server asks by a result, or by a task of its own.

The client finds the questions at its task, and answers them with `tasks/update` (ext-tasks).
"""

from collections.abc import Mapping
from time import monotonic

import msgspec

from gateway.bridge.suspended_calls import without_modern_gaps
from gateway.calls.live_session import live_session_of
from gateway.calls.suspended_call import AskingServer, InputRequest
from gateway.protocol.capabilities import may_be_asked
from gateway.protocol.questions import Question
from gateway.tasks.exchange import TaskExchange, TaskWork
from transports.jsonrpc import INTERNAL_ERROR, encode

__all__ = ["ResultAsker", "ask_client", "may_ask"]


def may_ask(exchange: TaskExchange, questions: Mapping[str, Question]) -> bool:
    """Whether the client has declared that it answers all of these. If not, the call has failed."""
    assert exchange.caller is not None
    for method, params in questions.values():
        if not may_be_asked(exchange.caller.capabilities, method, params or {}):
            exchange.fail(INTERNAL_ERROR, f"The server asked {method}, which the client has not declared to answer.")
            return False
    return True


def ask_client(server: AskingServer, exchange: TaskExchange, work: TaskWork, questions: Mapping[str, Question]) -> None:
    """Ask the client of a call that is suspended for it (event `ASK`), unless it has answered the same question of an
    earlier run. The call is cancelled if too many questions wait already. `server` gets the answers, under the keys of
    the questions as JSON."""
    live = live_session_of(exchange)
    assert live is not None
    known: list[tuple[InputRequest, str]] = []
    for key, (method, params) in questions.items():
        plain = None if params is None else without_modern_gaps(method, params)
        question = InputRequest(server, encode(key), method, plain)
        if (answer := exchange.take_replay(question.digest)) is not None:
            known.append((question, answer))
        elif not live.questions.suspend(exchange, question):
            exchange.cancel("too many questions wait for this client already")
            return
    if len(known) < len(questions):
        exchange.suspendable().ask_until(monotonic() + work.answer_s)
        work.asks()
    elif not exchange.suspendable().questions:
        exchange.resumed()
        exchange.restart_deadline()
    for question, answer in known:
        question.answer(msgspec.Raw(answer.encode()))


class ResultAsker:
    """What `AskingServer` wants, of a server that waits for nothing but results."""

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """The client has not answered in time: the caller cancels the call."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: the server waits for no progress."""
