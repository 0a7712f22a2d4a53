"""Translate a legacy client's call (MCP up to 2025-11-25) for a modern server, and send the server's questions to the
client."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from gateway.bridge.question_rounds import RoundTrips
from gateway.bridge.request_state import is_input_required
from gateway.bridge.task_follower import FollowedTask, ask_legacy_client
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession
from gateway.errors import OUTCOME_UNKNOWN
from gateway.protocol.input_requests import Question
from gateway.protocol.methods import METHODS
from gateway.protocol.result_translation import COMPLETE, legacy_error, legacy_result
from gateway.protocol.tasks import is_task
from transports.jsonrpc import HEADER_MISMATCH, Message, Object, encode, error_code

MAX_ROUNDS: Final = 10
"""Maximum number of rounds of questions during one call. SDK clients of the modern era have the same limit."""

_objects: Final = msgspec.json.Decoder(Object)


class ModernServerBridge:
    """Translate the response to a legacy client's call, and ask the client the questions of its modern server.

    `list_tools` requests the server's list of tools again, because the headers of a call depend on the schemas in the
    list. If the server refuses the headers, the bridge requests the list and sends the call once more (MCP 2026-07-28,
    Transports §Client Behavior).
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

    def answer_for_client(self, exchange: Exchange, message: Message) -> Message | None:
        """Return the response for the legacy client. Return None if the call has failed or goes on: the server asks for
        input, has created a task, or gets the call again with new headers."""
        if isinstance(message.error, msgspec.Raw):
            if self._list_tools is not None and error_code(message.error) == HEADER_MISMATCH:
                list_tools, self._list_tools = self._list_tools, None
                self._conversation.move_to_waiting(exchange, ExchangeEvent.REQUEUE)
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
        """Return a function that translates complete results of this method for the legacy client. For any other
        result, it returns None."""
        return functools.partial(_translated, method)

    def _other(self, exchange: Exchange, message: Message, result: Object) -> Message | None:
        """Handle a result that is not complete: the server asks for input, or has created a task. Return the response
        for the client; None if there is none yet."""
        if exchange.takes_rounds and (is_task(result) or is_input_required(result)):
            return message
        if is_task(result) and exchange.method == "tools/call":
            FollowedTask(self._conversation, exchange, self._params, self._meta).begin(result)
        elif is_input_required(result):
            self._rounds_of(exchange).begin(result)
        elif exchange.method in METHODS:
            # MCP 2026-07-28, Overview §ResultType: a type that the client does not know makes a result invalid.
            kind = bytes(result["resultType"])[:64].decode()
            exchange.fail(OUTCOME_UNKNOWN, f"The server answered with a result of a type that is unknown: {kind}")
        else:
            return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(legacy_result(exchange.method, result))))
        return None

    def _rounds_of(self, exchange: Exchange) -> "CallRounds":
        if self._rounds is None:
            call_s, since = self._conversation.deadlines.call_s, exchange.written_at
            self._rounds = CallRounds(
                self._conversation, exchange, self._params, self._meta, call_s=call_s, since=since
            )
            exchange.when_done(self._forget_rounds)  # leaves no reference cycle: garbage collections are rare
        return self._rounds

    def _forget_rounds(self) -> None:
        self._rounds = None

    async def _send_with_new_headers(self, exchange: Exchange, list_tools: Callable[[], Awaitable[object]]) -> None:
        try:
            await list_tools()
        except Exception as error:  # nobody else would answer the call
            self._conversation.fail_start(exchange, error, exchange.unsent_code)
            return
        params = self._params if self._rounds is None else self._rounds.params  # else it would begin anew
        self._conversation.start_in_background(exchange, params, self._meta)


def _translated(method: str, result: msgspec.Raw | bytes) -> bytes | None:
    found = _objects.decode(result)
    if bytes(found.get("resultType", COMPLETE)) != COMPLETE:
        return None
    return encode(legacy_result(method, found))


class CallRounds(RoundTrips):
    """Ask a legacy client the questions of its modern server during a call, round by round, with requests to the
    client."""

    max_rounds = MAX_ROUNDS
    poll_s = 0.1

    def _ask(self, live: LiveSession, questions: Mapping[str, Question]) -> None:
        ask_legacy_client(live.questions, self._conversation, self._exchange, questions, self._answered)
