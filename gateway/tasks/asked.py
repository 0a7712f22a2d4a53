"""A call of which its 2025-11-25 client has asked for a task (MCP 2025-11-25, Tasks), and the gateway makes the task.

The client speaks the legacy era and its call takes the way of a legacy call. The questions of its server are those of a
task all the same: they wait in the record, until the client asks for the result (`gateway.tasks.result_call`).
"""

from gateway.bridge.subscription_relay import caller_of
from gateway.calls.exchange import ExchangeConversation, fallback_id
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.owned_tasks import OwnedTask
from gateway.identity.credential_claims import CredentialClaims
from gateway.tasks.exchange import TaskExchange
from gateway.tasks.legacy_answers import legacy_task
from session_store import Context, Task
from transports.jsonrpc import Message, Object, encode, encode_notification, parse, splice
from transports.reply_queue import ReplyQueue

__all__ = ["AskedExchange"]

_STATUS = "notifications/tasks/status"


class AskedExchange(TaskExchange):
    """The call. `owned` says under which handle the client knows the task, and which of its calls waits for the
    result: the progress and the log messages of the call reach the client there, or on the stream of its session."""

    takes_rounds = True
    owned: OwnedTask | None = None
    _status = "working"  # the client was notified of, or knows from the answer to its call

    @classmethod
    def of(
        cls, live: LiveSession, context: Context, *, granted: CredentialClaims | None = None, handle: str = ""
    ) -> "AskedExchange":
        """A call in that session, with the rights of that context. `handle` is empty until the task is stored."""
        exchange = cls(
            method="tools/call",
            client_id=fallback_id(),  # there is `tasks/cancel`
            live=live,
            replies=ReplyQueue(),
            context=context,
            granted=granted,
        )
        if handle:
            exchange.known_as(handle)
        return exchange

    @property
    def era(self) -> str:
        return "legacy"

    def known_as(self, handle: str) -> None:
        """The task has this handle."""
        assert self.live is not None
        self.owned = OwnedTask(self.live, handle, seen=_nothing, lost=_nothing)

    def keep_for(self, seconds: float) -> None:
        """Keep the outcome for as long."""
        self.kept_s = seconds

    def sent_as(
        self,
        conversation: ExchangeConversation,
        number: int,
        request: tuple[Object, Object] | None,
        written_at: float,
    ) -> None:
        """From now on its questions are those of a call whose client is not there. Not before: the link of the session
        is that of a legacy client."""
        super().sent_as(conversation, number, request, written_at)
        if self.caller is None and (live := live_session_of(self)) is not None:
            self.caller = caller_of(live)

    def emit(self, frame: bytes) -> bool:
        message = parse(frame)
        is_progress = message.method == "notifications/progress"
        if message.is_request or (is_progress and self._is_quiet):
            return super().emit(frame)
        self._pass_on(message)
        return super().emit(frame) if is_progress else True

    def _pass_on(self, message: Message) -> None:
        """Send the client a notification of the call, with the id of the task."""
        if self.owned is not None:
            params = self.owned.named(message.params_object())
            self._send(encode_notification(str(message.method), splice(encode(params))))

    def stored(self, task: Task) -> None:
        """Notify the client that the task has another status."""
        if self.owned is None:
            return
        told = legacy_task(task, self.owned.handle)
        if told["status"] != self._status:
            self._status = told["status"]
            self._send(encode_notification(_STATUS, splice(encode(told))))

    def _send(self, frame: bytes) -> None:
        """Send a frame if the client reads: nothing depends on it, and a client that polls needs none."""
        stream, live = None if self.owned is None else self.owned.stream, live_session_of(self)
        if (stream is None or not stream.emit(frame)) and live is not None and live.open_streams:
            live.send_to_client(frame)


def _nothing(*_: object) -> None:
    """What is known of the task is in its record."""
