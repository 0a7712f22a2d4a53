"""A legacy client's call to a modern server, whose questions reach the client as requests on the call's stream."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec

from gateway.bridge.followed_task import FollowedTask
from gateway.bridge.request_state import is_input_required
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.failed_start import fail_start
from gateway.calls.live_session import live_session_of
from gateway.calls.questions import MAX_QUESTIONS_OF_CALL
from gateway.errors import CALL_TIMED_OUT, OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE
from gateway.observability.logs import CORRELATION
from gateway.protocol.methods import METHODS
from gateway.protocol.questions import question_of
from gateway.protocol.results import legacy_error, legacy_result
from gateway.protocol.tasks import is_task
from transports.jsonrpc import HEADER_MISMATCH, INTERNAL_ERROR, Message, Object, decode_object, encode, error_code

__all__ = ["ModernServerBridge"]

MAX_ROUNDS: Final = 10
"""How often a server may ask during one call; SDK clients of the modern era allow as many."""

_COMPLETE: Final = b'"complete"'

_POLL_S: Final = 0.1
"""How long to wait before a call is repeated whose result asks nothing and only gives a state."""


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
        self._rounds = 0
        self._since = monotonic()  # when the call was made, or its client has answered

    def finish(self, exchange: Exchange, message: Message) -> Message | None:
        """The client's answer to the call. None if the server has asked for input, or made a task of the call."""
        if isinstance(message.error, msgspec.Raw):
            if self._list_tools is not None and error_code(message.error) == HEADER_MISMATCH:
                list_tools, self._list_tools = self._list_tools, None
                self._conversation.wait(exchange, ExchangeEvent.REQUEUE)
                self._conversation.in_background(self._send_with_new_headers(exchange, list_tools))
                return None
            return Message(jsonrpc="2.0", id=0, error=legacy_error(exchange.method, self._params, message.error))
        if not isinstance(message.result, msgspec.Raw):
            return message
        result = msgspec.json.decode(message.result, type=Object)
        if is_task(result) and exchange.method == "tools/call":
            FollowedTask(self._conversation, exchange, self._params, self._meta).begin(result)
            return None
        if not is_input_required(result):
            kind = result.get("resultType")
            if exchange.method in METHODS and kind is not None and bytes(kind) != _COMPLETE:
                # MCP 2026-07-28, Overview §ResultType: a type that the client does not know makes a result invalid.
                reason = f"The server answered with a result of a type that is unknown: {bytes(kind)[:64].decode()}"
                exchange.fail(OUTCOME_UNKNOWN, reason)
                return None
            return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(legacy_result(exchange.method, result))))
        self._ask(exchange, result)
        return None

    def _ask(self, exchange: Exchange, result: Object) -> None:
        requests = {key: question_of(raw) for key, raw in _object(result, "inputRequests").items()}
        if len(requests) > MAX_QUESTIONS_OF_CALL:
            exchange.fail(INTERNAL_ERROR, f"The server asked for more than {MAX_QUESTIONS_OF_CALL} inputs at once.")
            return
        live = live_session_of(exchange)
        asks = bool(requests) and live is not None
        self._rounds += asks
        if self._rounds > MAX_ROUNDS:
            exchange.fail(INTERNAL_ERROR, f"The server asked for input more than {MAX_ROUNDS} times.")
            return
        limit_s = self._conversation.deadlines.call_s
        if not asks and monotonic() - self._since > limit_s:  # each repetition begins the call's own deadline anew
            exchange.fail(CALL_TIMED_OUT, f"The server did not complete the call within {limit_s:g} s.")
            return
        self._conversation.wait(exchange, ExchangeEvent.ASK if asks else ExchangeEvent.REQUEUE)
        more: Object = {"requestState": result["requestState"].copy()} if "requestState" in result else {}
        if not requests or live is None:
            asyncio.get_running_loop().call_later(_POLL_S, self._again, exchange, more)
            return
        responses: Object = {}
        wanted = len(requests)

        def answered(key: str, message: Message) -> None:
            if isinstance(message.error, msgspec.Raw):
                # The modern era cannot pass an error to the server: the call ends with the client's error.
                self._conversation.end(exchange)
                exchange.settle(message)
            elif isinstance(message.result, msgspec.Raw):
                responses[key] = message.result.copy()
                if len(responses) == wanted:
                    self._since = monotonic()
                    self._again(exchange, more | {"inputResponses": msgspec.Raw(encode(responses))})

        for key, (method, params) in requests.items():
            live.questions.ask_for_result(exchange, method, params, functools.partial(answered, key))

    def _again(self, exchange: Exchange, more: Object) -> None:
        self._conversation.in_background(self._send(exchange, self._params | more))

    async def _send_with_new_headers(self, exchange: Exchange, list_tools: Callable[[], Awaitable[object]]) -> None:
        try:
            await list_tools()
        except Exception as error:  # nobody else would answer the call
            fail_start(self._conversation, exchange, error, UPSTREAM_UNAVAILABLE)
            return
        await self._send(exchange, self._params)

    async def _send(self, exchange: Exchange, params: Object) -> None:
        if exchange.is_over:
            return  # the client has cancelled it meanwhile
        CORRELATION.set(exchange.correlation)  # of this task
        try:
            await self._conversation.start(exchange, params, self._meta)
        except Exception as error:  # nobody else would answer the call
            fail_start(self._conversation, exchange, error, OUTCOME_UNKNOWN)


def _object(outer: Object, name: str) -> Object:
    return decode_object(outer.get(name, msgspec.Raw(b"{}")), name)
