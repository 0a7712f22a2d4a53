"""A call that can become a task: the client's present request is answered with a handle, and the call goes on.

Only the calls of clients that declare the extension are of this kind; others pay nothing for it.
"""

import logging
from time import monotonic
from typing import Protocol

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.suspended_call import AskingServer, SuspendedCall
from gateway.errors import UPSTREAM_UNAVAILABLE, store_refused
from gateway.observability.observed import LogFacts
from gateway.protocol.extensions import object_of
from gateway.protocol.tasks import TaskAtServer, is_task
from gateway.tasks.recorded_answers import RecordedAnswers
from gateway.tasks.sink import TaskSink
from session_store import StoreError, Task
from transports.inbound_port import Refused
from transports.jsonrpc import Message, Object, encode, encode_result, parse
from transports.reply_queue import Frame

__all__ = ["TaskExchange", "TaskQuestions", "TaskWork", "fail_unsent"]

logger = logging.getLogger(__name__)


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
        """A message of the call: a notification, or its end."""
        ...

    def asks(self) -> None:
        """The call waits for answers of its client."""
        ...

    def rounds(self, result: Object) -> None:
        """The server has answered with questions (MCP 2026-07-28, Multi Round-Trip Requests)."""
        ...

    def follow(self, created: Object) -> None:
        """The server has made a task of its own of the call (ext-tasks, `CreateTaskResult`)."""
        ...

    @property
    def is_followed_elsewhere(self) -> bool:
        """Whether a later process follows the task that the server has made of the call."""
        ...

    def has_become(self, task: TaskAtServer) -> None:
        """The server has made that task of the call. A later process can follow it."""
        ...

    def withdrawn(self) -> None:
        """The server has withdrawn questions."""
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
        """The questions that wait for its client (`inputRequests`)."""
        return {} if self.suspended is None or not self.is_suspended else self.suspended.requests()

    def stored(self, task: Task) -> None:
        """The store has this version of its task."""

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
