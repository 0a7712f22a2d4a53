"""A task that a modern server makes of a call of which the gateway has made a task before: the gateway follows it.

The client has one handle already. Whatever the server's task comes to is the outcome of the call.
"""

import asyncio
import contextlib
import logging
from time import monotonic
from typing import Final

import msgspec

from gateway.bridge.suspended_calls import without_modern_gaps
from gateway.calls.conversation import Conversation
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.live_session import live_session_of
from gateway.calls.suspended_call import InputRequest
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN
from gateway.protocol.capabilities import may_be_asked
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.tasks import with_tasks
from gateway.tasks.exchange import TaskExchange, TaskWork
from transports.jsonrpc import INTERNAL_ERROR, InvalidMessage, Message, Object, decode_object, encode
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["ServerTask"]

logger = logging.getLogger(__name__)

POLL_S: Final = 1.0
"""How often the server is asked, if it does not say."""

_LEAST_POLL_S, _MOST_POLL_S = 0.1, 60.0
_UNFINISHED: Final = (b'"working"', b'"input_required"')
_MOST_FAILURES: Final = 5
"""How often in a row a server behind a URL may be unavailable."""


class ServerTask:
    """The server's task of one call. To its questions, this is the server (`AskingServer`)."""

    def __init__(self, exchange: TaskExchange, work: TaskWork, conversation: Conversation, created: Object) -> None:
        self._exchange = exchange
        self._work = work
        self._conversation = conversation
        self._id = msgspec.json.decode(created.get("taskId", b"null"), type=str)
        self._state = created
        self._asked: set[str] = set()

    def begin(self) -> None:
        """Follow the task in the background, until it is over."""
        self._conversation.wait(self._exchange, ExchangeEvent.REQUEUE)
        self._exchange.step(ExchangeEvent.SEND)  # the server has the call, as its task
        self._conversation.in_background(self._follow())

    async def _follow(self) -> None:
        exchange, conversation = self._exchange, self._conversation
        conversation.hold_link()
        failures = 0
        try:
            while not exchange.is_over:
                await asyncio.sleep(self._poll_s())
                try:
                    await conversation.ready()
                    answer = await self._ask("tasks/get")
                    failures = 0
                except (LinkClosed, UpstreamUnavailable, HandshakeRefused) as error:
                    failures += 1
                    if conversation.is_process or failures == _MOST_FAILURES:
                        self._fail(OUTCOME_UNKNOWN, f"{error}; whether the call took effect is unknown")
                    continue
                if not exchange.is_over:
                    exchange.restart_deadline()
                    self._take(answer)
        except (InvalidMessage, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._fail(INTERNAL_ERROR, f"The server's task cannot be read: {error}")
        except Exception as error:  # nobody else would end the call
            logger.error("a task of a server cannot be followed", exc_info=error, extra=exchange.log_fields())
            self._fail(OUTCOME_UNKNOWN, "The server's task cannot be followed; whether the call took effect is unknown")
        finally:
            conversation.free_link()
        if bytes(self._state.get("status", b"")) in _UNFINISHED:
            with contextlib.suppress(LinkClosed):
                conversation.request("tasks/cancel", self._params({}))

    def _take(self, answer: Message) -> None:
        """Act on the answer to `tasks/get`."""
        if isinstance(answer.error, msgspec.Raw):
            self._end(answer)
            return
        assert isinstance(answer.result, msgspec.Raw)
        self._state = decode_object(answer.result.copy(), "a task")
        match msgspec.json.decode(self._state.get("status", b"null")):
            case "completed":
                result = self._state.get("result", msgspec.Raw(b"{}"))
                decode_object(result, "its result")
                self._end(Message(jsonrpc="2.0", id=0, result=result))
            case "failed":
                error = self._state.get("error", msgspec.Raw(b"null"))
                decode_object(error, "its error")
                self._end(Message(jsonrpc="2.0", id=0, error=error))
            case "cancelled":
                self._fail(CANCELLED, "Cancelled: the server has cancelled the task")
            case "input_required":
                self._question(decode_object(self._state.get("inputRequests", b"{}"), "inputRequests"))

    def _question(self, requests: Object) -> None:
        exchange, live = self._exchange, live_session_of(self._exchange)
        assert live is not None and exchange.caller is not None
        new = {key: raw for key, raw in requests.items() if key not in self._asked}
        for key, raw in new.items():
            asked = decode_object(raw, "an input request")
            method = msgspec.json.decode(asked.get("method", b"null"), type=str)
            params = decode_object(asked.get("params", b"{}"), "params")
            question = InputRequest(self, encode(key), method, without_modern_gaps(method, params))
            if not may_be_asked(exchange.caller.capabilities, method, params):
                self._fail(INTERNAL_ERROR, f"The server asked {method}, which the client has not declared to answer.")
                return
            if not live.questions.suspend(exchange, question):
                exchange.cancel("too many questions wait for this client already")
                return
            self._asked.add(key)
        if new and not exchange.is_suspended:
            exchange.step(ExchangeEvent.ASK)
        if new:
            exchange.suspendable().ask_until(monotonic() + self._work.answer_s)
            self._work.asks()

    def _end(self, message: Message) -> None:
        self._conversation.end(self._exchange)
        self._exchange.settle(message)

    def _fail(self, code: int, reason: str) -> None:
        self._conversation.fail(self._exchange, code, reason)

    def _poll_s(self) -> float:
        with contextlib.suppress(msgspec.MsgspecError):
            poll_ms = msgspec.json.decode(self._state.get("pollIntervalMs", b"null"), type=float)
            return min(max(poll_ms / 1_000, _LEAST_POLL_S), _MOST_POLL_S)
        return POLL_S

    async def _ask(self, method: str) -> Message:
        return await self._conversation.ask(method, self._params({}))

    def _params(self, more: Object) -> bytes:
        assert self._exchange.caller is not None
        meta = with_tasks(self._exchange.caller.meta(""))
        return encode({"taskId": self._id, **more, "_meta": meta})

    # -- as the server that has asked

    def answer(self, request_id: bytes, message: Message) -> None:
        """Send one answer on."""
        if isinstance(message.result, msgspec.Raw) and not self._exchange.is_over:
            key = msgspec.json.decode(request_id, type=str)
            with contextlib.suppress(LinkClosed):
                responses = msgspec.Raw(encode({key: message.result}))
                self._conversation.request("tasks/update", self._params({"inputResponses": responses}))

    def refuse(self, request_id: bytes, code: int, reason: str) -> None:
        """The client has not answered in time: the caller cancels the call."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Do nothing: the server waits for no progress."""
