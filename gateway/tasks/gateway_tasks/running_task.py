"""Run a task while its call is in flight on this replica: each event of the call changes the record of the task."""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gateway.bridge.call_suspension import answer_suspended, refuse_suspended
from gateway.calls.conversation import conversation_of
from gateway.calls.lifecycles import ExchangeState
from gateway.calls.live_session import live_session_of
from gateway.config.limits import TaskSettings
from gateway.errors import CANCELLED, OUTCOME_UNKNOWN, error_of
from gateway.observability.observed_call import LogFacts
from gateway.observability.request_outcomes import TOOL_ERROR, outcome_of
from gateway.protocol.tasks import TaskAtServer
from gateway.tasks.gateway_tasks.questions_to_client import Rounds, ServerTask
from gateway.tasks.gateway_tasks.stored_call import PART_BYTES, FollowedCall, StoredCall, answered, following
from gateway.tasks.gateway_tasks.task_exchange import TaskExchange, TaskQuestions
from gateway.tasks.gateway_tasks.task_record_writer import TaskRecordWriter
from gateway.tasks.gateway_tasks.task_states import (
    TaskEvent,
    after,
    can_be_read,
    error_text,
    may_run_again,
    message_of,
    progress_text,
    reason_of,
)
from session_store import Task
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.inbound_port import Answer
from transports.jsonrpc import INTERNAL_ERROR, InvalidMessage, Message, Object, encode, error_code, parse, splice
from transports.reply_queue import Frame

logger = logging.getLogger(__name__)

_LAST_WRITE_S: Final = 2.0
"""Seconds that the last write may take. The next owner of the task needs it."""

_UNREADABLE: Final = "The call has ended, but the answer of its server cannot be read"

_TOOL_ERROR: Final = "the tool has reported an error"


class RunningTask:
    """Runs one task while its call is in flight here: each event of the call changes the task's record. `ended` is
    called when the outcome is stored, or when another owner continues the task. `is_kept`: the store outlives this
    process, so that another owner can continue the task."""

    def __init__(
        self,
        exchange: TaskExchange,
        record: TaskRecordWriter,
        settings: TaskSettings,
        *,
        ended: Callable[["RunningTask"], None],
        is_kept: bool,
    ) -> None:
        self.exchange = exchange
        self.record = record
        self.is_left = False
        """Set if the call was ended on this replica without an outcome, because another replica continues the
        session."""
        self.is_unknown = False
        """Set if the task has failed because the outcome of its call is unknown."""
        self._settings = settings
        self.kept_s = settings.outcome_ttl_s(record.task.kept_s)
        self._ended = ended
        self._is_kept = is_kept
        self._rounds: Rounds | None = None
        self._reply: Answer | None = None
        self._has_ended = False
        self._tasks = Tasks("task")

    @property
    def task(self) -> Task:
        """Return the record of the task, including changes that are not stored yet."""
        return self.record.task

    @property
    def name(self) -> str:
        """Return the name of the task, which is unique among all sessions."""
        return self.record.task.name

    @property
    def log_facts(self) -> LogFacts:
        return {"server": self.task.server, "task": redact(self.task.id)}

    @property
    def call_s(self) -> float:
        return self._settings.call_timeout_s

    def hold(self, reply: Answer) -> None:
        """Keep the call's reply until the task ends, and then release it. The reply keeps the session in use."""
        self._reply = reply
        if self._has_ended:
            self._release()

    async def settled(self) -> None:
        """If the call has ended, wait until the outcome of the task is stored. Otherwise return at once."""
        await self._tasks.settled()

    # -- what happens to the call (gateway.tasks.gateway_tasks.task_exchange.TaskWork)

    def receive(self, frame: Frame) -> None:
        if frame.final:
            self._over(frame)
            return
        try:
            message = parse(frame.data)
            if message.method == "notifications/progress":
                text = progress_text(message.params_object())
                self.record.change(can_wait=True, message=message_of(self.task.runs, text))
        except (InvalidMessage, msgspec.MsgspecError, ValueError, RecursionError):
            return  # an unreadable notification does not change the task

    def asks(self) -> None:
        suspended = self.exchange.suspendable()
        questions = encode(suspended.requests())
        if len(questions) > PART_BYTES:
            self.cancel("the server's questions are larger than a task may keep")
            return
        assert isinstance(suspended, TaskQuestions)
        self._step(TaskEvent.ASK, questions=questions, asked=suspended.count)

    def rounds(self, result: Object) -> None:
        if self._rounds is None:
            self._rounds = Rounds(self.exchange, self)
        self._rounds.ask(result)

    def follow(self, created: Object) -> None:
        try:
            ServerTask(self.exchange, self, conversation_of(self.exchange)).begin(created)
        except msgspec.MsgspecError:
            self.exchange.fail(INTERNAL_ERROR, "The server has made a task of the call whose id cannot be used.")

    @property
    def is_followed_elsewhere(self) -> bool:
        return self.is_left and bool(self.task.upstream_id)

    def task_created(self, task: TaskAtServer) -> None:
        """Store the task that the server has created for the call, so that the next owner can follow it. Later changes
        of the record are not stored before this one."""
        exchange = self.exchange
        followed = FollowedCall(task, exchange.declaration)
        call = StoredCall({}, exchange.context, exchange.era == "legacy")
        request = following(self.task.request or encode(call), followed) if self._is_kept else b""
        if request:
            self.record.change(upstream_id=task.id, request=request)

    def withdrawn(self) -> None:
        if not self.exchange.is_suspended or self.exchange.suspended is None:
            return
        if self.exchange.suspended.questions:
            self.asks()
        else:
            self.exchange.client_answered()
            self._step(TaskEvent.RESUME, questions=b"")

    def _over(self, frame: Frame) -> None:
        """End the task with the last frame of its call, even if the frame is unreadable."""
        try:
            self._decide(parse(frame.data))
        except Exception as error:
            logger.warning("a task ends without its outcome: %s", error, extra=self.exchange.log_fields())
            if not self.task.is_over:
                self._cannot_tell(_UNREADABLE)
        finally:
            self._tasks.spawn(self._end())

    def _decide(self, message: Message) -> None:
        live = live_session_of(self.exchange)
        if live is not None and live.is_elsewhere:
            # The replica that continues the session decides on the task. Here the outcome of the call is unknown.
            self.is_left = True
        elif isinstance(message.error, msgspec.Raw):
            error, text = splice(message.error), error_text(message.error)
            if self.exchange.state is ExchangeState.CANCELLED or (live is not None and live.ended):
                self._end_as(TaskEvent.CANCEL, text or "")
            elif text is None:
                self._cannot_tell(_UNREADABLE)
            else:
                self._fail(error, text)
        elif isinstance(message.result, msgspec.Raw):
            result = splice(message.result)
            if len(result) > PART_BYTES:
                size = f"its result of {len(result)} bytes is larger than a task may keep"
                self._cannot_tell(f"The call was done, but {size} ({PART_BYTES} bytes).")
            elif not can_be_read(result):
                self._cannot_tell("The call was done, but its result is nested deeper than a task may keep.")
            else:
                is_error = outcome_of(result) is TOOL_ERROR  # the status stays `completed` (ext-tasks, Task Status)
                text, why = (_TOOL_ERROR, reason_of(result)) if is_error else ("", "")
                self._end_as(TaskEvent.COMPLETE, text, result=result, is_tool_error=is_error, reason=why)

    def _cannot_tell(self, text: str) -> None:
        """Fail the task, because the server's answer cannot be given to the client. `text` tells the client why."""
        self._fail(encode(error_of(INTERNAL_ERROR, text, self.exchange.correlation)), text)

    def _fail(self, error: bytes, text: str) -> None:
        if len(error) > PART_BYTES or not can_be_read(error):
            error = encode(error_of(error_code(error), text, self.exchange.correlation))
        self._end_as(TaskEvent.FAIL, text, error=error)

    def _end_as(self, event: TaskEvent, text: str, **outcome: Any) -> None:
        """End the task with `event`, and set the fields `outcome` of its record. `text` describes the outcome, and
        replaces the last progress as the task's message."""
        ttl_s = self.record.now - self.task.created_at + self.kept_s  # counts from the creation
        self._step(event, questions=b"", answers=b"", message=message_of(self.task.runs, text), ttl_s=ttl_s, **outcome)

    def _step(self, event: TaskEvent, **fields: Any) -> None:
        self.record.change(status=after(self.task.status, event), **fields)

    async def _end(self) -> None:
        if self.is_left:
            # The next owner may need the id of the server's task.
            await self.record.close(_LAST_WRITE_S if self.task.upstream_id else 0.0)
        else:
            await self.record.written()
        self.exchange.left()
        self.exchange.done()
        self._has_ended = True
        self._release()
        self._ended(self)
        self._rounds = None
        self.exchange.forget_work()  # no reference cycle is left: garbage collections are rare

    def _release(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.done()

    # -- requests of clients and operators

    def answer(self, responses: Object) -> None:
        """Pass the client's answers to open questions on to the call. `responses` has the answers by the keys of their
        questions; unknown keys are ignored."""
        suspended = self.exchange.suspended
        if not self.exchange.is_suspended or suspended is None or not responses.keys() & suspended.questions.keys():
            return
        answers: dict[str, Any] = {}
        if may_run_again(self.task):  # in a second run, the server would ask the same
            answers["answers"] = answered(self.task.answers, suspended.questions, responses).encoded()
        answer_suspended(self.exchange, responses)  # asks again for missing answers
        self._go_on(answers)

    def answer_one(self, key: str, message: Message) -> None:
        """Pass the client's answer to the question `key` on to the call. `message` has a result or an error. Do nothing
        if no open question has this key."""
        if isinstance(message.result, msgspec.Raw):
            self.answer({key: message.result})
        elif key in self.exchange.open_questions():
            refuse_suspended(self.exchange, key, message)
            self._go_on({})

    def _go_on(self, answers: dict[str, Any]) -> None:
        if self.task.is_over:
            return
        if not self.exchange.is_suspended:
            self._step(TaskEvent.RESUME, questions=b"", **answers)
        elif answers:
            self.record.change(**answers)

    def cancel(self, reason: str) -> None:
        """Cancel the call: notify its server, if the call was sent, and end the task. `reason` is for the server and
        the client."""
        if self.exchange.conversation is not None:
            self.exchange.cancel(reason)
        else:
            self.exchange.fail(CANCELLED, f"Cancelled: {reason}")

    def give_up(self, reason: str, *, tells: bool = False) -> None:
        """Fail a task whose call was sent and whose outcome is unknown. `tells`: also send the server
        `notifications/cancelled`."""
        self.is_unknown = True
        if tells:
            self.exchange.cancel(reason, OUTCOME_UNKNOWN)
        elif self.exchange.conversation is not None:
            self.exchange.conversation.fail(self.exchange, OUTCOME_UNKNOWN, reason)
