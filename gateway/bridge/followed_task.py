"""A legacy client's call that its modern server has made a task of: the gateway polls the task and answers the call.

Questions of the task reach the client as requests on the call's stream, and its messages as progress.
"""

import functools
from collections.abc import Set

import msgspec

from gateway.bridge.task_follower import TaskFollower
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import live_session_of
from gateway.errors import OUTCOME_UNKNOWN
from gateway.protocol.questions import question_of
from gateway.protocol.results import legacy_error, legacy_result
from transports.jsonrpc import Message, Object, encode, encode_notification, splice

__all__ = ["FollowedTask"]


class FollowedTask(TaskFollower):
    """The task of one call. `params` are those of the call, `meta` is what the server gets with every request."""

    def __init__(self, conversation: Conversation, exchange: Exchange, params: Object, meta: Object) -> None:
        super().__init__(conversation, exchange, {key: value for key, value in meta.items() if key != "progressToken"})
        self._params = params
        self._told = 0

    def _complete(self, result: Object) -> None:
        plain = encode(legacy_result(self._exchange.method, result))
        self._settle(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(plain)))

    def _end_with(self, error: msgspec.Raw) -> None:
        error = legacy_error(self._exchange.method, self._params, error)
        self._settle(Message(jsonrpc="2.0", id=0, error=error))

    def _settle(self, message: Message) -> None:
        self._conversation.end(self._exchange)
        self._exchange.settle(message)

    def _tell(self, message: object) -> None:
        """Tell the client the message of the task as progress, if it wants progress."""
        token = self._exchange.progress_token
        if token is not None and isinstance(message, str) and message:
            self._told += 1
            params = {"progressToken": token, "progress": self._told, "message": message}
            self._exchange.emit(encode_notification("notifications/progress", splice(encode(params))))

    def _ask(self, requests: Object) -> None:
        live = live_session_of(self._exchange)
        if live is None:
            self._fail(OUTCOME_UNKNOWN, "the task asked its client, which has no session")
            return
        for key, (method, params) in {key: question_of(raw) for key, raw in requests.items()}.items():
            live.questions.ask_for_result(self._exchange, method, params, functools.partial(self._receive, key))

    def _receive(self, key: str, message: Message) -> None:
        if isinstance(message.error, msgspec.Raw):
            # No error can be passed to the server: the call ends with the client's error, and the task is cancelled.
            self._settle(message)
        elif isinstance(message.result, msgspec.Raw):
            self._answered(key, message.result)

    def _withdraw(self, keys: Set[str]) -> None:
        live = live_session_of(self._exchange)
        if live is not None and not self._asked:
            live.withdraw_questions(self._exchange)
