"""A legacy client's call to a modern server, whose questions reach the client as requests on the call's stream."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from gateway.bridge.request_state import is_input_required
from gateway.bridge.round_trips import RoundTrips
from gateway.bridge.task_follower import FollowedTask, ask_legacy_client
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.protocol.methods import METHODS
from gateway.protocol.questions import Question
from gateway.protocol.results import legacy_error, legacy_result
from gateway.protocol.tasks import is_task
from transports.jsonrpc import HEADER_MISMATCH, Message, Object, encode, error_code

__all__ = ["CallRounds", "ModernServerBridge"]

MAX_ROUNDS: Final = 10
"""How often a server may ask during one call; SDK clients of the modern era allow as many."""

_COMPLETE: Final = b'"complete"'
_objects: Final = msgspec.json.Decoder(Object)


class ModernServerBridge:
    """One call, and the rounds in which the server asks its client.

    `list_tools` reads the list of tools anew. The server may have refused the headers of the call, which follow the
    schemas in that list: it is sent once more then (MCP 2026-07-28, Transports §Client Behavior).
    """

    def __init__(
        self,
        conversation: Conversation,
        params: Object,
        meta: Object,
        *,
        list_tools: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._list_tools = list_tools
        self._conversation = conversation
        self._params = params
        self._meta = meta
        self._rounds: CallRounds | None = None  # None until the server asks something

    def finish(self, exchange: Exchange, message: Message) -> Message | None:
        """Return the client's answer to the call. None if the server has asked for input, or made a task of the
        call."""
        if isinstance(message.error, msgspec.Raw):
            if self._list_tools is not None and error_code(message.error) == HEADER_MISMATCH:
                list_tools, self._list_tools = self._list_tools, None
                self._conversation.wait(exchange, ExchangeEvent.REQUEUE)
                self._conversation.in_background(self._send_with_new_headers(exchange, list_tools))
                return None
            return Message(jsonrpc="2.0", id=0, error=legacy_error(exchange.method, self._params, message.error))
        if not isinstance(message.result, msgspec.Raw):
            return message
        if (result := self.translator(exchange.method)(message.result)) is not None:
            return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(result))
        return self._other(exchange, message, _objects.decode(message.result))

    @staticmethod
    def translator(method: str) -> Callable[[msgspec.Raw | bytes], bytes | None]:
        """Return what makes the client's result of such a request from the server's; None if `finish` has to see it."""
        return functools.partial(_translated, method)

    def _other(self, exchange: Exchange, message: Message, result: Object) -> Message | None:
        """Do as `finish`, for a result of another type than `complete`."""
        if exchange.takes_rounds and (is_task(result) or is_input_required(result)):
            return message
        if is_task(result) and exchange.method == "tools/call":
            FollowedTask(self._conversation, exchange, self._params, self._meta).begin(result)
        elif is_input_required(result):
            self._rounds_of(exchange).begin(result)
        elif exchange.method in METHODS:
            # MCP 2026-07-28, Overview §ResultType: a type that the client does not know makes a result invalid.
            kind = bytes(result["resultType"])[:64].decode()
            reason = f"The server answered with a result of a type that is unknown: {kind}"
            exchange.fail(OUTCOME_UNKNOWN, reason)
        else:
            return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(legacy_result(exchange.method, result))))
        return None

    def _rounds_of(self, exchange: Exchange) -> "CallRounds":
        if self._rounds is None:
            call_s, since = self._conversation.deadlines.call_s, exchange.written_at
            self._rounds = CallRounds(
                self._conversation, exchange, self._params, self._meta, call_s=call_s, since=since
            )
            exchange.when_done(self._forget_rounds)  # no circle is left: collections are rare
        return self._rounds

    def _forget_rounds(self) -> None:
        self._rounds = None

    async def _send_with_new_headers(self, exchange: Exchange, list_tools: Callable[[], Awaitable[object]]) -> None:
        try:
            await list_tools()
        except Exception as error:  # nobody else would answer the call
            self._conversation.fail_start(exchange, error, UPSTREAM_UNAVAILABLE)
            return
        self._conversation.start_in_background(exchange, self._params, self._meta)


def _translated(method: str, result: msgspec.Raw | bytes) -> bytes | None:
    found = _objects.decode(result)
    if bytes(found.get("resultType", _COMPLETE)) != _COMPLETE:
        return None
    return encode(legacy_result(method, found))


class CallRounds(RoundTrips):
    """The rounds of the call of a legacy client."""

    max_rounds = MAX_ROUNDS
    poll_s = 0.1

    def _ask(self, live: LiveSession, questions: Mapping[str, Question]) -> None:
        ask_legacy_client(live.questions, self._conversation, self._exchange, questions, self._answered)
