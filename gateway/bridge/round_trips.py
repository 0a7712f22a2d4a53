"""The rounds of one call: its server asks by a result, and the call is repeated with the answers of the client.

MCP 2026-07-28, Multi Round-Trip Requests. How a client is asked is not known here: a legacy client gets requests
(`gateway.bridge.modern_server`), the client of a task finds the questions at its task (`gateway.tasks.made.questions`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from time import monotonic

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.questions import MAX_QUESTIONS_OF_CALL
from gateway.errors import CALL_TIMED_OUT
from gateway.protocol.questions import Question, questions_of
from transports.era import LEGACY
from transports.jsonrpc import INTERNAL_ERROR, Object, encode

__all__ = ["RoundTrips"]


class RoundTrips(ABC):
    """The rounds of one call. `params` and `meta` are those of the call.

    `since` is when its server got it, by the monotonic clock. From then on, or from the last answers of the client, the
    server has `call_s` to complete the call without asking: each repetition begins the call's own deadline anew.
    """

    max_rounds: int
    """How often the server may ask."""
    poll_s: float
    """How long to wait before a call is repeated whose result asks nothing and only gives a state."""

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

    @abstractmethod
    def _ask(self, live: LiveSession, questions: Mapping[str, Question]) -> None:
        """Ask the client. Each answer comes to `_answered`."""

    def _may_ask(self, questions: Mapping[str, Question]) -> bool:
        """Return True if the client may be asked. If not, the call has failed."""
        return True

    def begin(self, result: Object) -> None:
        """Ask the client what the server's result asks for. A result that asks nothing has the call repeated soon, and
        so has one that asks a client without a session.

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
        if live is not None and not self._may_ask(questions):
            return
        self._state = {"requestState": result["requestState"].copy()} if "requestState" in result else {}
        self._answers, self._wanted = {}, len(questions)
        self._conversation.wait(exchange, ExchangeEvent.REQUEUE if live is None else ExchangeEvent.ASK)
        if live is None:
            asyncio.get_running_loop().call_later(self.poll_s, self._send, self._state)
        else:
            self._ask(live, questions)

    def _answered(self, key: str, answer: msgspec.Raw) -> None:
        """Take one answer. The call is repeated once all have come."""
        self._answers[key] = answer.copy()  # a slice would keep the whole message in memory
        if len(self._answers) == self._wanted:
            # In the next turn of the loop: whoever has brought the answer notes it first.
            asyncio.get_running_loop().call_soon(self._repeat)

    def _repeat(self) -> None:
        if not self._exchange.is_over:
            self._since = monotonic()
            self._conversation.wait(self._exchange, ExchangeEvent.REQUEUE)
            self._send(self._state | {"inputResponses": msgspec.Raw(encode(self._answers))})

    def _send(self, more: Object) -> None:
        if self._exchange.is_over:
            return
        if self._conversation.era is LEGACY:
            more = {}  # its user was to visit a URL (`gateway.bridge.legacy_server`): the call begins anew
        self._conversation.start_in_background(self._exchange, self._params | more, self._meta)
