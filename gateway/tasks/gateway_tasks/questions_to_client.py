"""Ask the client of a task the questions of the task's server. The server sends them in a result, or in a task of its
own.

The client reads the questions in the state of its task, and answers them with `tasks/update` (ext-tasks).
"""

from collections.abc import Mapping, Set
from time import monotonic
from typing import Final

import msgspec

from gateway.bridge.call_suspension import without_modern_gaps
from gateway.bridge.question_rounds import RoundTrips, may_ask
from gateway.bridge.task_follower import TaskFollower
from gateway.calls.conversation import Conversation, conversation_of
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.suspended_call import AskingServer, InputRequest
from gateway.protocol.input_requests import Question
from gateway.protocol.tasks import with_tasks
from gateway.tasks.gateway_tasks.task_exchange import ANSWER_S, TaskExchange, TaskWork
from transports.jsonrpc import INTERNAL_ERROR, InvalidMessage, Message, Object, encode

MAX_ROUNDS: Final = 32
"""Maximum number of rounds of questions during one task: more than during a call, as a task may take hours."""


def ask_client(server: AskingServer, exchange: TaskExchange, work: TaskWork, questions: Mapping[str, Question]) -> None:
    """Ask the client of a call the questions of its server, by key. The client finds them in the state of `work`, its
    task. The call must be in the state `asking`.

    A question that the client has answered in an earlier run of the call gets the same answer. If too many questions
    are open, cancel the call. `server.answer` is called with each answer. It gets the question's key, as JSON, as the
    request id.
    """
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
        exchange.suspendable().ask_until(monotonic() + ANSWER_S)
        work.asks()
    elif not exchange.suspendable().questions:
        exchange.client_answered()
        exchange.restart_deadline()
    for question, answer in known:
        question.answer(msgspec.Raw(answer.encode()))


class Rounds(RoundTrips):
    """Asks the client the questions in the results of a task's call, and sends the call again with the answers, round
    by round. Receives the client's answers in place of the server (`gateway.calls.suspended_call.AskingServer`)."""

    max_rounds = MAX_ROUNDS
    poll_s = 1.0
    _exchange: TaskExchange

    def __init__(self, exchange: TaskExchange, work: TaskWork) -> None:
        assert exchange.request is not None
        conversation, (params, meta) = conversation_of(exchange), exchange.request
        super().__init__(conversation, exchange, params, meta, call_s=work.call_s, since=monotonic())
        self._work = work

    def ask(self, result: Object) -> None:
        """Ask the client the questions in a server's result. If they cannot be read, fail the call."""
        try:
            self.begin(result)
        except (InvalidMessage, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._exchange.fail(INTERNAL_ERROR, f"The server's questions cannot be read: {error}")

    def _ask(self, live: LiveSession, questions: Mapping[str, Question]) -> None:
        ask_client(self, self._exchange, self._work, questions)

    def answer(self, request_id: bytes, message: Message) -> None:
        """Receive the client's answer to one question, whose key is `request_id`. If the answer is an error, end the
        call with it, because the protocol cannot carry it to the server."""
        if isinstance(message.result, msgspec.Raw):
            self._answered(msgspec.json.decode(request_id, type=str), message.result)
        else:
            conversation_of(self._exchange).end(self._exchange)
            self._exchange.finish_translated(message)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Do nothing: the client has not answered in time, and the caller cancels the call."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing with a notification of the client about a question: no request of the server waits for
        progress."""


class ServerTask(TaskFollower):
    """Follows the task that a server has created for one call. Receives the client's answers in place of the server
    (`AskingServer`)."""

    _exchange: TaskExchange

    def __init__(self, exchange: TaskExchange, work: TaskWork, conversation: Conversation) -> None:
        assert exchange.declaration is not None
        super().__init__(conversation, exchange, with_tasks(exchange.declaration.meta("")))
        self._work = work

    def _complete(self, result: Object) -> None:
        self._end(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(result))))

    def _end_with(self, error: msgspec.Raw) -> None:
        self._end(Message(jsonrpc="2.0", id=0, error=error))

    def _progress(self, message: object) -> None:
        """Ignore a progress message of the server's task: the client's task keeps its present message."""

    def _ask(self, questions: Mapping[str, Question]) -> None:
        if may_ask(self._exchange, questions):
            if not self._exchange.is_suspended:
                self._exchange.step(ExchangeEvent.ASK)
            ask_client(self, self._exchange, self._work, questions)

    def _withdraw(self, keys: Set[str]) -> None:
        for key in keys:
            self._exchange.suspendable().withdraw(self, encode(key))

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send the server the client's answer to one question, whose key is `request_id`. If the answer is an error,
        end the call with it, because the protocol cannot carry it to the server."""
        if isinstance(message.result, msgspec.Raw):
            self._answered(msgspec.json.decode(request_id, type=str), message.result)
        else:
            self._end(message)

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """Do nothing: the client has not answered in time, and the caller cancels the call."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing with a notification of the client about a question: no request of the server waits for
        progress."""
