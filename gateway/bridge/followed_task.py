"""A legacy client's call that its modern server has made a task of: the gateway polls the task and answers the call.

Questions of the task reach the client as requests on the call's stream, and its messages as progress.
"""

from collections.abc import Mapping, Set

import msgspec

from gateway.bridge.legacy_client import ask_legacy_client
from gateway.bridge.task_follower import TaskFollower
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import live_session_of
from gateway.errors import OUTCOME_UNKNOWN
from gateway.protocol.questions import Question
from gateway.protocol.results import legacy_error, legacy_result
from transports.jsonrpc import Message, Object, encode, encode_notification, splice

__all__ = ["FollowedTask"]


class FollowedTask(TaskFollower):
    """The task of one call. `params` are those of the call, `meta` is what the server gets with every request."""

    def __init__(self, conversation: Conversation, exchange: Exchange, params: Object, meta: Object) -> None:
        super().__init__(conversation, exchange, {key: value for key, value in meta.items() if key != "progressToken"})
        self._params = params
        self._sent_progress = 0

    def _complete(self, result: Object) -> None:
        plain = encode(legacy_result(self._exchange.method, result))
        self._settle(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(plain)))

    def _end_with(self, error: msgspec.Raw) -> None:
        error = legacy_error(self._exchange.method, self._params, error)
        self._settle(Message(jsonrpc="2.0", id=0, error=error))

    def _settle(self, message: Message) -> None:
        self._conversation.end(self._exchange)
        self._exchange.settle(message)

    def _progress(self, message: object) -> None:
        """Send the client the message of the task as progress, if it wants progress."""
        token = self._exchange.progress_token
        if token is not None and isinstance(message, str) and message:
            self._sent_progress += 1
            params = {"progressToken": token, "progress": self._sent_progress, "message": message}
            self._exchange.emit(encode_notification("notifications/progress", splice(encode(params))))

    def _ask(self, questions: Mapping[str, Question]) -> None:
        live = live_session_of(self._exchange)
        if live is None:
            self._fail(OUTCOME_UNKNOWN, "the task asked its client, which has no session")
            return
        # An error of the client ends the call, and so cancels the task.
        ask_legacy_client(live.questions, self._conversation, self._exchange, questions, self._answered)

    def _withdraw(self, keys: Set[str]) -> None:
        live = live_session_of(self._exchange)
        if live is not None and not self._asked:
            live.withdraw_questions(self._exchange)
