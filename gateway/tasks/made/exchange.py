"""A call that can become a task: the client's present request is answered with a handle, and the call goes on.

Only the calls of clients that declare the extension, or ask for a task, are of this kind; others pay nothing for it.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Protocol

import msgspec

from gateway.bridge.subscription_relay import caller_of
from gateway.calls.exchange import Exchange, ExchangeConversation, fallback_id
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.owned_tasks import OwnedTask
from gateway.calls.suspended_call import AskingServer, SuspendedCall
from gateway.errors import UPSTREAM_UNAVAILABLE, store_refused
from gateway.identity.credential_claims import CredentialClaims
from gateway.observability.observed import LogFacts
from gateway.protocol.extensions import object_of
from gateway.protocol.tasks import TaskAtServer, is_task
from gateway.tasks.answers import legacy_task
from gateway.tasks.made.stored_call import RecordedAnswers
from session_store import Context, StoreError, Task
from transports.inbound_port import Refused
from transports.jsonrpc import Message, Object, encode, encode_notification, encode_result, parse, splice
from transports.reply_queue import Frame, ReplyQueue

__all__ = ["RequestedExchange", "TaskExchange", "TaskQuestions", "TaskSink", "TaskWork", "fail_unsent"]

logger = logging.getLogger(__name__)

_STATUS = "notifications/tasks/status"


class TaskSink(ReplyQueue):
    """Hands each frame to `receive` at once: nothing waits for a reader, because there is none."""

    __slots__ = ("_receive",)

    def __init__(self, receive: Callable[[Frame], None]) -> None:
        super().__init__()
        self._receive = receive

    def detach(self) -> None:
        """Take no more frames, and forget who received them."""
        self.close()
        self._receive = _nobody

    def push(self, frame: Frame) -> bool:
        if self.is_closed:
            return False
        if frame.final:
            self.close()
        self._receive(frame)
        return True


def _nobody(_: Frame) -> None:
    """Receives nothing: the sink is closed."""


class TaskWork(Protocol):
    """The task that a call has become."""

    @property
    def log_facts(self) -> LogFacts:
        """The fields by which log lines name it."""
        ...

    @property
    def answer_s(self) -> float:
        """How long the client may take to answer a question, in seconds."""
        ...

    @property
    def call_s(self) -> float:
        """How long the call may go without a message of its server, in seconds."""
        ...

    def receive(self, frame: Frame) -> None:
        """Take a message of the call: a notification, or its end."""
        ...

    def asks(self) -> None:
        """Record that the call waits for answers of its client."""
        ...

    def rounds(self, result: Object) -> None:
        """Ask what a result of the server asks for (MCP 2026-07-28, Multi Round-Trip Requests)."""
        ...

    def follow(self, created: Object) -> None:
        """Follow the task that the server has made of the call (ext-tasks, `CreateTaskResult`)."""
        ...

    @property
    def is_followed_elsewhere(self) -> bool:
        """Return True if a later process follows the task that the server has made of the call."""
        ...

    def has_become(self, task: TaskAtServer) -> None:
        """Record that the server has made that task of the call. A later process can follow it."""
        ...

    def withdrawn(self) -> None:
        """Record that the server has withdrawn questions."""
        ...


class TaskQuestions(SuspendedCall):
    """The questions of a call that is a task, or may become one. `first`: how many its earlier runs have asked, so
    that no key is used twice."""

    def __init__(self, exchange: "TaskExchange", first: int = 0) -> None:
        super().__init__()
        self._last = first
        self._exchange = exchange

    @property
    def count(self) -> int:
        """How many questions were asked so far, those of earlier runs included."""
        return self._last

    def withdraw(self, server: AskingServer, server_id: bytes | None) -> None:
        before = len(self.questions)
        super().withdraw(server, server_id)
        if len(self.questions) != before and self._exchange.work is not None:
            self._exchange.work.withdrawn()


class TaskExchange(Exchange):
    """A client's tool call that can become a task. `work` is the task that it is."""

    work: TaskWork | None = None
    request: tuple[Object, Object] | None = None  # params and `_meta` as the server got them first
    asked_before = 0  # questions of earlier runs
    kept_s = 0.0  # how long the outcome is kept, if its client has said
    _recorded: RecordedAnswers | None = None  # what the client has answered in an earlier run
    task_at_server: TaskAtServer | None = None
    _is_quiet = False  # the client has asked for no progress
    _progress: bytes | None = None  # the last notification before it became a task

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

    def has_become(self, task: TaskAtServer) -> None:
        self.task_at_server = task
        if self.work is not None:
            self.work.has_become(task)

    def suspendable(self) -> SuspendedCall:
        if self.suspended is None:
            self.suspended = TaskQuestions(self, self.asked_before)
        return self.suspended

    def suspend(self, result: Object) -> None:
        if self.work is None:
            super().suspend(result)
            return
        self.step(ExchangeEvent.ASK)
        self.suspendable().ask_until(monotonic() + self.work.answer_s)
        self.work.asks()

    def settle(self, message: Message) -> None:
        if self.work is not None and isinstance(message.result, msgspec.Raw):
            result = object_of(message.result)
            if bytes(result.get("resultType", b"")) == b'"input_required"':
                self.work.rounds(result)
                return
            if is_task(result):
                self.work.follow(result)
                return
        super().settle(message)

    def become(self, work: TaskWork, result: Object) -> None:
        """Answer the client's present request with `result`, the handle of the task. What comes of the call from now on
        goes to the task."""
        self._work_as(work)
        data = encode(result if self.shape is None else self.shape(self, result))
        answered, self.replies = self.replies, TaskSink(work.receive)
        self.shape = None  # the outcome is stored, and no token of a session may be
        answered.push(Frame(encode_result(encode(self.client_id), data), final=True))
        if self.task_at_server is not None:
            work.has_become(self.task_at_server)
        if self._progress is not None:
            self._report(work, self._progress)

    def _report(self, work: TaskWork, progress: bytes) -> None:
        """Tell the task its progress so far. The client has the handle: nothing may undo the task from here on."""
        try:
            work.receive(Frame(progress))
        except Exception as error:
            logger.error("progress could not become the message of a task", exc_info=error, extra=self.log_fields())

    def open_questions(self) -> Object:
        """Return the questions that wait for its client (`inputRequests`)."""
        return {} if self.suspended is None or not self.is_suspended else self.suspended.requests()

    def stored(self, task: Task) -> None:
        """Take note that the store has this version of its task."""

    def forget_work(self) -> None:
        """Forget the task, which is over."""
        self.work = None
        if isinstance(self.replies, TaskSink):
            self.replies.detach()

    def take_replay(self, digest: str) -> str | None:
        known = None if self._recorded is None else self._recorded.take(digest)
        return super().take_replay(digest) if known is None else known

    def run_as(self, work: TaskWork, asked_before: int, recorded: RecordedAnswers | None = None) -> None:
        """Begin as a task that an earlier owner may have left: no request of a client waits. Questions that are
        `recorded` are not asked again."""
        self._recorded = recorded
        self.replies = TaskSink(work.receive)
        self._work_as(work)
        self.asked_before = asked_before

    def _work_as(self, work: TaskWork) -> None:
        self.work, self.call_s = work, work.call_s
        self.add_log_facts(work.log_facts)


def fail_unsent(exchange: TaskExchange, error: BaseException) -> None:
    """End a task whose call could not be sent."""
    if isinstance(error, StoreError):
        error = store_refused(error)
    if isinstance(error, Refused):
        exchange.fail(error.code, str(error))
        return
    if isinstance(error, Exception):
        logger.error("the call of a task could not be sent", exc_info=error, extra=exchange.log_fields())
    exchange.fail(UPSTREAM_UNAVAILABLE, "the call could not be sent")


class RequestedExchange(TaskExchange):
    """The call. `owned` says under which handle the client knows the task, and which of its calls waits for the
    result: the progress and the log messages of the call reach the client there, or on the stream of its session."""

    takes_rounds = True
    owned: OwnedTask | None = None
    _status = "working"  # the client was notified of, or knows from the answer to its call

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
        """Return a call in that session, with the rights of that context. `handle` is empty until the task is
        stored."""
        exchange = cls(
            method="tools/call",
            client_id=fallback_id(),  # there is `tasks/cancel`
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
        """Set the handle of the task."""
        assert self.live is not None
        self.owned = OwnedTask(self.live, handle, seen=_nothing, lost=_nothing)

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
    """Do nothing: what is known of the task is in its record."""
