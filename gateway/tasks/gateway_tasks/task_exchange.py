"""Let a call become a task: its client's request is answered with a handle (task id), and the call continues.

Only calls of clients that declare the tasks extension, or request a task, use this module.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

import msgspec

from gateway.bridge.modern_server_subscriptions import declaration_of
from gateway.bridge.request_state import is_input_required
from gateway.calls.conversation import conversation_of
from gateway.calls.exchange import Exchange, ExchangeConversation, fallback_id
from gateway.calls.lifecycles import ExchangeEvent, ExchangeState
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.server_task_owners import OwnedTask
from gateway.calls.suspended_call import AskingServer, SuspendedCall
from gateway.errors import OUTCOME_UNKNOWN, UPSTREAM_UNAVAILABLE, store_refused
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.observed_call import LogFacts
from gateway.protocol.extensions import object_of
from gateway.protocol.tasks import TaskAtServer, is_task
from gateway.tasks.gateway_tasks.stored_call import RecordedAnswers
from gateway.tasks.task_messages import legacy_task
from session_store import Context, StoreError, Task
from transports.inbound_port import Refused
from transports.jsonrpc import Message, Object, encode, encode_notification, encode_result, parse, splice
from transports.reply_queue import Frame, ReplyQueue

logger = logging.getLogger(__name__)

ANSWER_S: Final = 600.0
"""Seconds for which a task waits for the answers of its client to a question of the server. Then the task fails."""

_STATUS = "notifications/tasks/status"


class TaskSink(ReplyQueue):
    """Passes each frame of a task's call to the callback `receive` at once: no client reads a queue."""

    __slots__ = ("_receive",)

    def __init__(self, receive: Callable[[Frame], None]) -> None:
        super().__init__()
        self._receive = receive

    def detach(self) -> None:
        """Ignore all further frames, and drop the reference to `receive`."""
        self.close()
        self._receive = lambda frame: None

    def push(self, frame: Frame) -> bool:
        if self.is_closed:
            return False
        if frame.final:
            self.close()
        self._receive(frame)
        return True


class TaskWork(Protocol):
    """The interface through which a call in flight (`TaskExchange`) uses the task that it has become."""

    @property
    def log_facts(self) -> LogFacts:
        """Return the fields of a log line that name the task."""

    @property
    def call_s(self) -> float:
        """Return how many seconds the call may last without a message of its server."""

    def receive(self, frame: Frame) -> None:
        """Handle a frame of the call: a notification, or the answer (`frame.final`)."""

    def asks(self) -> None:
        """Record that the call waits for its client's answers."""

    def rounds(self, result: Object) -> None:
        """Ask the client the questions of a server's result (MCP 2026-07-28, Multi Round-Trip Requests)."""

    def follow(self, created: Object) -> None:
        """Follow the task that the server has created for the call (ext-tasks, `CreateTaskResult`)."""

    @property
    def is_followed_elsewhere(self) -> bool:
        """Return True if another process will follow the task that the server has created for the call."""

    def task_created(self, task: TaskAtServer) -> None:
        """Record that the server has created this task for the call, so that a later process can follow it."""

    def withdrawn(self) -> None:
        """Record that the server has cancelled some of the questions that it had asked."""


class TaskQuestions(SuspendedCall):
    """Holds the questions of a call that is a task or may become one. Keys are counted on from the questions that
    earlier runs of the call have asked, so that none is used twice."""

    def __init__(self, exchange: "TaskExchange") -> None:
        super().__init__()
        self._last = exchange.asked_before
        self._exchange = exchange

    @property
    def count(self) -> int:
        """Return the number of questions asked so far, including those of earlier runs."""
        return self._last

    def withdraw(self, server: AskingServer, server_id: bytes | None) -> None:
        before = len(self.questions)
        super().withdraw(server, server_id)
        if len(self.questions) != before and self._exchange.work is not None:
            self._exchange.work.withdrawn()


class TaskExchange(Exchange):
    """A client's tool call that can become a task."""

    work: TaskWork | None = None
    """The task that the call has become; None if it has not become one, or the task has ended."""
    request: tuple[Object, Object] | None = None
    """The params and the `_meta` of the first request to the server; None before it is sent."""
    asked_before = 0  # questions of earlier runs
    kept_s = 0.0  # seconds that the client wants the outcome kept; 0: it has not said
    _recorded: RecordedAnswers | None = None  # what the client has answered in an earlier run
    task_at_server: TaskAtServer | None = None
    """The task that the server has created for the call; None if it has created none."""
    _is_quiet = False  # the client has not asked for progress
    _progress: bytes | None = None  # the last notification before it became a task
    _holds_questions = False
    _held: Object | Message | None = None  # the result that asks: of a suspended call, or the server's own answer

    def encoded(self, number: int, params: Object, meta: Object) -> bytes | None:
        if self.request is None:
            self.request = (params, meta)
        if "progressToken" not in meta:
            # The progress becomes the message of the task.
            self._is_quiet = True
            meta = meta | {"progressToken": msgspec.Raw(encode(number))}
        return super().encoded(number, params, meta)

    def emit(self, frame: bytes) -> bool:
        if self.work is None and parse(frame).method == "notifications/progress":
            self._progress = frame
            if self._is_quiet:
                return True
        return super().emit(frame)

    @property
    def keeps_task_at_server(self) -> bool:
        return self.work is not None and self.work.is_followed_elsewhere

    def task_created(self, task: TaskAtServer) -> None:
        self.task_at_server = task
        if self.work is not None:
            self.work.task_created(task)

    def suspendable(self) -> SuspendedCall:
        if self.suspended is None:
            self.suspended = TaskQuestions(self)
        return self.suspended

    def hold_questions(self) -> None:
        """Send the client no question of the server until `release_questions`. The client's request is still open and
        is to be answered with the task's handle. A question now would be its answer instead."""
        self._holds_questions = True

    def release_questions(self) -> None:
        """Ask the client the questions that were held back since `hold_questions` and not withdrawn. If the call has
        become a task, the task asks them. Do nothing if no request of the call is at its server any more."""
        self._holds_questions = False
        held, self._held = self._held, None
        if held is None or self.state is not ExchangeState.SENT:
            return
        if isinstance(held, Message):
            self._settle_held(held)
            return
        suspended = self.suspendable()
        # While more questions are gathered, all are asked once they are there.
        if suspended.questions and not suspended.is_gathering:
            self.suspend(held | {"inputRequests": msgspec.Raw(encode(suspended.requests()))})

    def _settle_held(self, message: Message) -> None:
        conversation = conversation_of(self)
        try:
            self.finish_translated(message)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # nobody else would answer the call
            reason = f"server {conversation.name!r} answered with a result that cannot be read"
            self.fail(OUTCOME_UNKNOWN, reason)
        if self.is_over:
            conversation.end(self)

    def suspend(self, result: Object) -> None:
        if self._holds_questions:
            self._held = result
            return
        if self.work is None:
            super().suspend(result)
            return
        self.step(ExchangeEvent.ASK)
        self.suspendable().ask_until(monotonic() + ANSWER_S)
        self.work.asks()

    def finish_translated(self, message: Message) -> None:
        if (self._holds_questions or self.work is not None) and isinstance(message.result, msgspec.Raw):
            result = object_of(message.result)
            if is_input_required(result) and self._holds_questions:
                self._held = message
                conversation_of(self).calls.add_waiting(self)  # the server has answered, but the call has not ended
                return
            if is_input_required(result) and self.work is not None:
                self.work.rounds(result)
                return
            if is_task(result) and self.work is not None:
                self.work.follow(result)
                return
        super().finish_translated(message)

    def become(self, work: TaskWork, result: Object) -> None:
        """Become the task `work`: answer the client's open request with `result`, which has the handle. All later
        frames of the call go to the task."""
        self._work_as(work)
        data = encode(result if self.shape is None else self.shape(self, result))
        answered, self.replies = self.replies, TaskSink(work.receive)
        self.shape = None  # it may add a session token, and the outcome is stored, which a token must not be
        answered.push(Frame(encode_result(encode(self.client_id), data), final=True))
        if self.task_at_server is not None:
            work.task_created(self.task_at_server)
        if self._progress is not None:
            try:
                work.receive(Frame(self._progress))
            except Exception as error:  # the client has the handle of the task already
                logger.error("progress could not become the message of a task", exc_info=error, extra=self.log_fields())

    def open_questions(self) -> Object:
        """Return the questions that the client has not answered, by key (`inputRequests`)."""
        return {} if self.suspended is None or not self.is_suspended else self.suspended.requests()

    def stored(self, task: Task) -> None:
        """Do nothing here. Called with each version of the task's record that was stored; a subclass notifies its
        client."""

    def forget_work(self) -> None:
        """Drop the references of the call to its task, after the task has ended."""
        self.work = None
        if isinstance(self.replies, TaskSink):
            self.replies.detach()

    def take_replay(self, digest: str) -> str | None:
        known = None if self._recorded is None else self._recorded.take(digest)
        return super().take_replay(digest) if known is None else known

    def run_as(self, work: TaskWork, asked_before: int, recorded: RecordedAnswers | None = None) -> None:
        """Run the call as the task `work` from its beginning, so that no client waits for it. `asked_before` is the
        number of questions that earlier runs of the call have asked. A question with an answer in `recorded` is not
        asked again."""
        self._recorded = recorded
        self.replies = TaskSink(work.receive)
        self._work_as(work)
        self.asked_before = asked_before

    def _work_as(self, work: TaskWork) -> None:
        self.work, self.call_s = work, work.call_s
        self.add_log_facts(work.log_facts)


def fail_unsent(exchange: TaskExchange, error: BaseException) -> None:
    """End a task whose call could not be sent. If `error` is for clients (`Refused`), it is the task's outcome. An
    error of the store becomes the refusal for clients that `store_refused` returns. After any other error, the outcome
    only says that the call could not be sent."""
    if isinstance(error, StoreError):
        error = store_refused(error)
    if isinstance(error, Refused):
        exchange.refuse(error)
        return
    if isinstance(error, Exception):
        logger.error("the call of a task could not be sent", exc_info=error, extra=exchange.log_fields())
    exchange.fail(UPSTREAM_UNAVAILABLE, "the call could not be sent")


class RequestedExchange(TaskExchange):
    """A legacy client's tool call that has requested a task. If a `tasks/result` call waits for the task, the client
    gets progress and log messages on the stream of that call, otherwise on the session's standalone stream."""

    takes_rounds = True
    owned: OwnedTask | None = None
    """The task's handle, and the `tasks/result` call that waits for the task. None until the task has a handle."""
    _status = "working"  # the last status that the client was told

    @classmethod
    def of(
        cls,
        live: LiveSession,
        context: Context,
        *,
        granted: CredentialClaims | None = None,
        handle: str = "",
        kept_s: float = 0.0,
    ) -> "RequestedExchange":
        """Return a new call in this session with the rights of this context. `granted` has the claims of the client's
        credential. `handle` is empty until the task is stored. `kept_s` is how many seconds the client wants the
        outcome stored; 0 if it has not said."""
        exchange = cls(
            method="tools/call",
            client_id=fallback_id(),  # the client cancels by `tasks/cancel`, not by a request id
            live=live,
            replies=ReplyQueue(),
            context=context,
            granted=granted,
        )
        exchange.kept_s = kept_s
        if handle:
            exchange.known_as(handle)
        return exchange

    @property
    def era(self) -> str:
        return "legacy"

    def known_as(self, handle: str) -> None:
        """Set the handle by which the client knows the task."""
        assert self.live is not None
        # The task's state is in its record.
        self.owned = OwnedTask(self.live, handle, seen=lambda task: None, lost=lambda: None)

    def sent_as(
        self,
        conversation: ExchangeConversation,
        number: int,
        request: tuple[Object, Object] | None,
        written_at: float,
    ) -> None:
        """Record that the request was sent. Then set the client's declaration, because questions to the client need
        it. It is not set earlier, because the link must be opened as for a legacy client."""
        super().sent_as(conversation, number, request, written_at)
        if self.declaration is None and (live := live_session_of(self)) is not None:
            self.declaration = declaration_of(live)

    def emit(self, frame: bytes) -> bool:
        message = parse(frame)
        is_progress = message.method == "notifications/progress"
        if message.is_request or (is_progress and self._is_quiet):
            return super().emit(frame)
        if self.owned is not None:  # the client gets the notification related to the task, by its handle
            params = self.owned.named(message.params_object())
            self._send(encode_notification(str(message.method), splice(encode(params))))
        return super().emit(frame) if is_progress else True

    def stored(self, task: Task) -> None:
        """Notify the client if the stored status of the task is not the one that the client knows."""
        if self.owned is None:
            return
        told = legacy_task(task, self.owned.handle)
        if told["status"] != self._status:
            self._status = told["status"]
            self._send(encode_notification(_STATUS, splice(encode(told))))

    def _send(self, frame: bytes) -> None:
        """Send a frame to the client if it has a stream open. Otherwise drop it: the client can poll."""
        stream, live = None if self.owned is None else self.owned.stream, live_session_of(self)
        if (stream is None or not stream.emit(frame)) and live is not None and live.open_streams:
            live.send_to_client(frame)
