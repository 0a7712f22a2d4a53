"""A legacy client's call that its modern server has made a task of: the gateway polls the task and answers the call.

Questions of the task reach the client as requests on the call's stream, and its messages as progress.
"""

import asyncio
import functools
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.exchange_state import ExchangeEvent
from gateway.calls.failed_start import fail_start
from gateway.calls.live_session import live_session_of
from gateway.calls.questions import MAX_QUESTIONS_OF_CALL
from gateway.errors import CALL_TIMED_OUT, CANCELLED, OUTCOME_UNKNOWN
from gateway.observability.logs import CORRELATION
from gateway.protocol.questions import question_of
from gateway.protocol.results import legacy_error, legacy_result
from transports.jsonrpc import Message, Object, decode_object, encode, encode_notification, splice

__all__ = ["FollowedTask"]

_DEFAULT_POLL_S: Final = 1.0
_LEAST_POLL_S: Final = 0.1
_MOST_POLL_S: Final = 30.0
_MAX_ASKED: Final = 10 * MAX_QUESTIONS_OF_CALL
"""Questions of one task to its client, as many as a call may ask in all its rounds."""


class FollowedTask:
    """The task of one call. `params` are those of the call, `meta` is what the server gets with every request."""

    def __init__(self, conversation: Conversation, exchange: Exchange, params: Object, meta: Object) -> None:
        self._conversation = conversation
        self._exchange = exchange
        self._params = params
        self._meta = {key: value for key, value in meta.items() if key != "progressToken"}
        self._own_id = ""
        self._poll_s = _DEFAULT_POLL_S
        self._changed_at = monotonic()
        self._seen = ("", "")  # status and message that the client was told of
        self._told = 0
        self._asked: set[str] = set()
        self._is_over = False

    def begin(self, task: Object) -> None:
        """Follow the task, as the server has just made it. Raises `msgspec.MsgspecError`: it has no id."""
        self._own_id = msgspec.json.decode(task.get("taskId", b"null"), type=str)
        self._poll_s = _interval(task)
        self._exchange.when_done(self._done)
        self._conversation.wait(self._exchange, ExchangeEvent.REQUEUE)
        self._conversation.in_background(self._follow())

    async def _follow(self) -> None:
        CORRELATION.set(self._exchange.correlation)  # of this task
        try:
            while not self._is_ended:
                await asyncio.sleep(self._poll_s)
                if not self._is_ended:
                    await self._conversation.ready()
                    self._take(await self._conversation.ask("tasks/get", self._request()))
        except (msgspec.MsgspecError, ValueError):
            self._fail(OUTCOME_UNKNOWN, f"server {self._conversation.name!r} sent a task that cannot be read")
        except Exception as error:  # nobody else would answer the call
            fail_start(self._conversation, self._exchange, error, OUTCOME_UNKNOWN)

    @property
    def _is_ended(self) -> bool:
        return self._is_over or self._exchange.is_over

    def _request(self, more: Mapping[str, Any] | None = None) -> bytes:
        return encode({"taskId": self._own_id, **(more or {}), "_meta": self._meta})

    def _take(self, answer: Message) -> None:
        """Handle the answer to one poll."""
        if self._is_ended:
            return
        if not isinstance(answer.result, msgspec.Raw):
            self._settle(answer)
            return
        task = msgspec.json.decode(answer.result, type=Object)
        self._poll_s = _interval(task)
        match msgspec.json.decode(task.get("status", b"null")):
            case "completed":
                result = decode_object(task["result"], "result")
                plain = msgspec.Raw(encode(legacy_result(self._exchange.method, result)))
                self._settle(Message(jsonrpc="2.0", id=0, result=plain))
            case "failed":
                self._settle(Message(jsonrpc="2.0", id=0, error=task.get("error", msgspec.Raw(b"{}"))))
            case "cancelled":
                self._fail(CANCELLED, "the server has cancelled the task")
            case status:
                self._goes_on(task, str(status))

    def _settle(self, message: Message) -> None:
        self._is_over = True
        self._conversation.end(self._exchange)
        if isinstance(message.error, msgspec.Raw):
            error = legacy_error(self._exchange.method, self._params, message.error)
            message = Message(jsonrpc="2.0", id=0, error=error)
        self._exchange.settle(message)

    def _fail(self, code: int, reason: str) -> None:
        self._is_over = code != CALL_TIMED_OUT
        self._conversation.fail(self._exchange, code, reason)

    def _goes_on(self, task: Object, status: str) -> None:
        message = msgspec.json.decode(task.get("statusMessage", b'""'))
        if (status, message) != self._seen:
            self._seen, self._changed_at = (status, message), monotonic()
            self._tell(message)
        limit_s = self._conversation.deadlines.call_s
        if monotonic() - self._changed_at > limit_s:
            reason = (
                f"the task of server {self._conversation.name!r} did not change within {limit_s:g} s; it was cancelled"
            )
            self._fail(CALL_TIMED_OUT, reason)
        elif status == "input_required":
            self._ask(decode_object(task.get("inputRequests", msgspec.Raw(b"{}")), "inputRequests"))

    def _tell(self, message: object) -> None:
        """Tell the client the message of the task as progress, if it wants progress."""
        token = self._exchange.progress_token
        if token is not None and isinstance(message, str) and message:
            self._told += 1
            params = {"progressToken": token, "progress": self._told, "message": message}
            self._exchange.emit(encode_notification("notifications/progress", splice(encode(params))))

    def _ask(self, requests: Object) -> None:
        live = live_session_of(self._exchange)
        new = {key: question_of(raw) for key, raw in requests.items() if key not in self._asked}
        if live is None or len(self._asked) + len(new) > _MAX_ASKED:
            self._fail(OUTCOME_UNKNOWN, "the task asked its client too much")
            return
        for key, (method, params) in new.items():
            self._asked.add(key)
            live.questions.ask_for_result(self._exchange, method, params, functools.partial(self._answered, key))

    def _answered(self, key: str, message: Message) -> None:
        self._changed_at = monotonic()
        if isinstance(message.error, msgspec.Raw):
            # No error can be passed to the server: the call ends with the client's error, and the task is cancelled.
            self._conversation.end(self._exchange)
            self._exchange.settle(message)
        elif isinstance(message.result, msgspec.Raw):
            self._conversation.request("tasks/update", self._request({"inputResponses": {key: message.result}}))

    def _done(self) -> None:
        if not self._is_over:  # the client has cancelled the call, or the call has failed
            self._is_over = True
            self._conversation.request("tasks/cancel", self._request())


def _interval(task: Object) -> float:
    """How long to wait before the next poll, in seconds, as the server suggests it."""
    suggested = msgspec.json.decode(task.get("pollIntervalMs", b"null"))
    if not isinstance(suggested, int | float):
        return _DEFAULT_POLL_S
    return min(max(suggested / 1_000, _LEAST_POLL_S), _MOST_POLL_S)
