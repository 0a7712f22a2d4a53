"""Ask a client the questions in a server's result, and send the call again with the answers, round by round.

See MCP 2026-07-28, Multi Round-Trip Requests. Subclasses ask the client: a legacy client by requests
(`gateway.bridge.modern_server`), the client of a task by the state of the task
(`gateway.tasks.gateway_tasks.questions_to_client`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from time import monotonic

import msgspec

from gateway.bridge.modern_server_subscriptions import declaration_for
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.questions_to_client import MAX_QUESTIONS_OF_CALL
from gateway.errors import CALL_TIMED_OUT
from gateway.protocol.client_capabilities import refusal
from gateway.protocol.input_requests import Question, questions_of
from transports.era import LEGACY
from transports.jsonrpc import INTERNAL_ERROR, Object, encode


def may_ask(exchange: Exchange, questions: Mapping[str, Question]) -> bool:
    """Return True if the client has declared that it answers all of these questions. Otherwise end the call with an
    error, and return False."""
    declaration = declaration_for(exchange)
    declared = b"{}" if declaration is None else declaration.capabilities
    for method, params in questions.values():
        if refused := refusal(declared, method, params or {}):
            exchange.fail(INTERNAL_ERROR, refused[1])
            return False
    return True


class RoundTrips(ABC):
    """Run the rounds of questions of one call, which has the params `params` and the `_meta` `meta`.

    `since` is the monotonic time at which the server got the call. Within `call_s` seconds after that, or after the
    client's last answers, the server must complete the call or ask. The call's own deadline does not limit this time,
    because each repetition of the call restarts that deadline."""

    max_rounds: int
    """Maximum number of rounds in which the server asks."""
    poll_s: float
    """Seconds before a call is sent again if its result has a state but no questions."""

    def __init__(
        self,
        conversation: Conversation,
        exchange: Exchange,
        params: Object,
        meta: Object,
        *,
        call_s: float,
        since: float,
    ) -> None:
        self._conversation = conversation
        self._exchange = exchange
        self._params = params
        self._meta = meta
        self._call_s = call_s
        self._since = since
        self._count = 0
        self._state: Object = {}  # the server's `requestState`, if it has sent one
        self._answers: Object = {}
        self._wanted = 0
        self.params = params
        """The params of the last request of the call."""

    @abstractmethod
    def _ask(self, live: LiveSession, questions: Mapping[str, Question]) -> None:
        """Ask the client these questions. Call `_answered` with each answer."""

    def begin(self, result: Object) -> None:
        """Ask the client the questions in a result of the server. If there are none, or the client has no session, send
        the call again after `poll_s` seconds.

        Raises:
            InvalidMessage: the questions cannot be read.
        """
        exchange, questions = self._exchange, questions_of(result)
        if len(questions) > MAX_QUESTIONS_OF_CALL:
            exchange.fail(INTERNAL_ERROR, f"The server asked for more than {MAX_QUESTIONS_OF_CALL} inputs at once.")
            return
        live = live_session_of(exchange) if questions else None
        self._count += live is not None
        if self._count > self.max_rounds:
            exchange.fail(INTERNAL_ERROR, f"The server asked for input more than {self.max_rounds} times.")
            return
        if live is None and monotonic() - self._since > self._call_s:
            exchange.fail(CALL_TIMED_OUT, f"The server did not complete the call within {self._call_s:g} s.")
            return
        if live is not None and not may_ask(exchange, questions):
            return
        self._state = {"requestState": result["requestState"].copy()} if "requestState" in result else {}
        self._answers, self._wanted = {}, len(questions)
        self._conversation.move_to_waiting(exchange, ExchangeEvent.REQUEUE if live is None else ExchangeEvent.ASK)
        if live is None:
            asyncio.get_running_loop().call_later(self.poll_s, self._send, self._state)
        else:
            self._ask(live, questions)

    def _answered(self, key: str, answer: msgspec.Raw) -> None:
        """Store the client's answer to the question `key`. Once all questions are answered, send the call again with
        the answers."""
        self._answers[key] = answer.copy()  # a slice would keep the whole message in memory
        if len(self._answers) == self._wanted:
            # In the next turn of the event loop, because the caller records the answer first.
            asyncio.get_running_loop().call_soon(self._repeat)

    def _repeat(self) -> None:
        if not self._exchange.is_over:
            self._since = monotonic()
            self._conversation.move_to_waiting(self._exchange, ExchangeEvent.REQUEUE)
            self._send(self._state | {"inputResponses": msgspec.Raw(encode(self._answers))})

    def _send(self, more: Object) -> None:
        if self._exchange.is_over:
            return
        if self._conversation.era is LEGACY:
            more = {}  # the user had to visit a URL (`gateway.bridge.legacy_server`): the call begins anew
        self.params = self._params | more
        self._conversation.start_in_background(self._exchange, self.params, self._meta)
