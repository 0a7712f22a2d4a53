"""Turn slow calls into tasks: the client gets a handle (task id), and the call continues.

A task is stored before its handle is sent. If the store cannot be written, or the client has the maximum number of
tasks, the call remains an ordinary call.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from gateway.calls.lifecycles import step
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.protocol.merged_lists import Called
from gateway.tasks.errors import too_many_tasks
from gateway.tasks.gateway_tasks.quotas import TaskQuotas
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.stored_call import RecordedAnswers, stored
from gateway.tasks.gateway_tasks.task_exchange import TaskExchange, fail_unsent
from gateway.tasks.gateway_tasks.task_table import TaskTable, log_fields_of
from gateway.tasks.task_handles import TaskHandles
from gateway.tasks.task_messages import created_result
from session_store import StoreError, Task
from session_store.session import new_task_id
from transports.background_tasks import Tasks
from transports.era import MODERN
from transports.inbound_port import Answer, HeaderList, Refused, Request, UnrecordedAnswer
from transports.reply_queue import Frame

logger = logging.getLogger(__name__)

_GONE_AFTER_S: Final = 0.05
"""Seconds after which a stored task expires if its client did not get the handle."""

ToolOf = Callable[[], Called]
"""A function that returns the facts about the called tool that are known at present."""


class ReplyState(StrEnum):
    """The states of the reply to a call that can become a task."""

    SENDING = "sending"
    """The call is being sent to its server. The client has no answer yet."""
    ACCEPTED = "accepted"
    """The call was sent, and its own reply goes to the client. A slow call may still become a task."""
    TASK = "task"
    """The client was answered with the handle of a task."""
    REFUSED = "refused"
    """The call was not sent, and the client gets an error."""


class ReplyEvent(StrEnum):
    """The events of a call that can become a task."""

    ACCEPT = "accept"
    """The call was sent. Its reply goes to the client, or to the task."""
    REFUSE = "refuse"
    """The call could not be sent. The error goes to the client, or to the task."""
    MAKE_TASK = "make task"


_S, _E = ReplyState, ReplyEvent

REPLY: Final[Mapping[ReplyState, Mapping[ReplyEvent, ReplyState]]] = {
    _S.SENDING: {_E.ACCEPT: _S.ACCEPTED, _E.REFUSE: _S.REFUSED, _E.MAKE_TASK: _S.TASK},
    _S.ACCEPTED: {_E.MAKE_TASK: _S.TASK},
    _S.TASK: {_E.ACCEPT: _S.TASK, _E.REFUSE: _S.TASK},
    _S.REFUSED: {},
}


class TaskableReply(UnrecordedAnswer):
    """Forwards the reply of a call to the HTTP layer, unless the call becomes a task
    (`transports.inbound_port.Answer`).

    `answered` is a future that is done when the client can be answered: the call was sent or refused, or has become a
    task. If it has become a task, the running task gets the call's own reply, and must end it.
    """

    def __init__(self, exchange: TaskExchange, headers: HeaderList) -> None:
        self.headers = headers
        self.replies = exchange.replies
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exchange = exchange
        self._state = ReplyState.SENDING
        self._inner: Answer | None = None
        self._hold: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_done = False

    @property
    def is_task(self) -> bool:
        """Return True if the client was answered with the handle of a task."""
        return self._state is ReplyState.TASK

    @property
    def is_gone(self) -> bool:
        """Return True if it is too late for a task: the client has disconnected, or has got a result or an error."""
        return self._is_done or self._state is ReplyState.REFUSED or self.replies.abandoned or self.replies.is_closed

    def begin_after(self, seconds: float, begin: Callable[[], object]) -> None:
        """Call `begin`, which makes the task, after `seconds`. Do not call it if this reply has ended by then."""

        def due() -> None:
            self._timer = None  # or `begin` and this reply would keep each other in memory
            begin()

        self._timer = asyncio.get_running_loop().call_later(seconds, due)

    def accepted(self, inner: Answer) -> None:
        """Record that the call was sent to its server. `inner` is the call's own reply. It goes to the task if the call
        has become one, otherwise to the client."""
        self._step(ReplyEvent.ACCEPT)
        self._inner = inner
        if self._hold is not None:
            self._hold(inner)
        self._answer()

    def refused(self, error: BaseException) -> None:
        """Record that the call could not be sent. If the call has become a task, `error` determines the task's outcome
        (`fail_unsent`); otherwise it goes to the client."""
        self._step(ReplyEvent.REFUSE)
        if self.is_task:
            fail_unsent(self._exchange, error)
        elif not self.answered.done():
            self.answered.set_exception(error)

    def became_task(self, hold: Callable[[Answer], None]) -> None:
        """Record that the client was answered with a task's handle. `hold` is called with the call's own reply, as soon
        as there is one."""
        self._step(ReplyEvent.MAKE_TASK)
        self._hold = hold
        if self._inner is not None:
            hold(self._inner)
        self._answer()

    def _step(self, event: ReplyEvent) -> None:
        self._state = step(REPLY, self._state, event)

    def _answer(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    # -- for the wire

    def cancel(self, reason: str) -> None:
        self.replies.abandon()
        if self.is_task:
            self.replies.close()
        elif self._inner is not None:
            self._inner.cancel(reason)
        else:
            self._exchange.cancel(reason)

    @property
    def is_doubtful(self) -> bool:
        return self._inner is not None and not self.is_task and self._inner.is_doubtful

    async def confirmed(self, frame: Frame) -> Frame:
        return frame if self._inner is None or self.is_task else await self._inner.confirmed(frame)

    def done(self) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None and not self.is_task:
            self._inner.done()


class TaskMaker:
    """Sends calls that can become tasks, and turns the slow ones into tasks."""

    def __init__(self, table: TaskTable, quotas: TaskQuotas, handles: TaskHandles) -> None:
        self._table = table
        self._settings = table.settings
        self._quotas = quotas
        self._handles = handles
        self._tasks = Tasks("making of tasks")

    async def answer(
        self,
        exchange: TaskExchange,
        request: Request,
        headers: HeaderList,
        accepting: Awaitable[Answer],
        tool_of: ToolOf,
    ) -> Answer:
        """Send a call that can become a task. Return the reply for the client once the call was sent or has become a
        task.

        `accepting` sends the call, and returns the call's own reply, which the client gets if there is no task.
        `headers` are for the HTTP response. `tool_of` returns what is known of the called tool. Raises the errors of
        `accepting`.
        """
        reply = self._begin(exchange, request, headers, tool_of)
        sending = self._tasks.spawn(_accept(reply, accepting))
        try:
            await reply.answered
        except BaseException:
            sending.cancel()
            reply.done()
            raise
        return reply

    def resumed(self, exchange: TaskExchange, request: Request, inner: Answer, tool_of: ToolOf) -> Answer:
        """Return the reply to a request in which a client has answered questions of its call. `inner` is the call's own
        reply. The client gets it, unless the call still becomes a task."""
        reply = self._begin(exchange, request, inner.headers, tool_of)
        reply.accepted(inner)
        return reply

    def _begin(self, exchange: TaskExchange, request: Request, headers: HeaderList, tool_of: ToolOf) -> TaskableReply:
        reply = TaskableReply(exchange, headers)
        tool = tool_of()
        is_at_once = tool.needs_task or self._settings.is_at_once(tool.server, tool.name)
        if is_at_once:
            exchange.hold_questions()
        reply.begin_after(
            0.0 if is_at_once else self._settings.after_s,
            lambda: self._tasks.spawn(self._make_then_ask(exchange, request, reply, tool_of)),
        )
        return reply

    async def _make_then_ask(
        self, exchange: TaskExchange, request: Request, reply: TaskableReply, tool_of: ToolOf
    ) -> None:
        """Turn a call into a task if possible (`_make`). Then ask the questions that its server has asked meanwhile."""
        try:
            await self._make(exchange, request, reply, tool_of)
        finally:
            exchange.release_questions()

    async def begin(self, exchange: TaskExchange, request: Request, tool: Called) -> RunningTask:
        """Create, store and return the task of a call that is about to be sent. The caller sends the call, and answers
        the client with the task's handle.

        Raises:
            Refused: the session or its principal has the maximum number of tasks.
            StoreError: the store cannot be written.
        """
        live = live_session_of(exchange)
        assert live is not None
        task = self._new(live, exchange, request, tool)
        if not await self._quotas.hold(task):
            self._table.noted(task, "refused")
            raise too_many_tasks().recorded()  # by the event of the task
        running = self._table.add(task, exchange)
        exchange.run_as(running, 0)
        try:
            await self._store(task)
        except BaseException:
            await self._forget(running)
            raise
        self._table.noted(task, "made")
        return running

    async def undo(self, running: RunningTask) -> None:
        """Delete a task whose call was refused, before any client has the task's handle."""
        task = running.task
        await running.settled()
        with contextlib.suppress(StoreError):  # it stays until it expires
            await self._delete(await self._table.store.get(task.session_id, task.id) or task)
        await self._forget(running)

    async def _make(self, exchange: TaskExchange, request: Request, reply: TaskableReply, tool_of: ToolOf) -> None:
        """Turn a call into a task. Leave the call as it is if it has ended, asks its client or has lost its client, if
        there are too many tasks, or if the store does not take the task."""
        live = live_session_of(exchange)
        if live is None or _is_settled(exchange, reply):
            return
        if request.forwarded is not None:
            # The handle is the last frame to the replica that forwarded the call. It has to agree to the call before.
            try:
                await request.forwarded.before_sending()
            except Refused:
                return  # the call itself fails too
        task = self._new(live, exchange, request, tool_of())
        try:
            if not await self._quotas.hold(task):
                logger.info("a slow call becomes no task: there are too many", extra=log_fields_of(task))
                self._table.noted(task, "refused")
                return
        except StoreError as error:
            logger.info("a slow call becomes no task: %s", error, extra=log_fields_of(task))
            return
        running = self._table.add(task, exchange)
        try:
            await self._store(task)
        except StoreError as error:
            logger.info("a slow call becomes no task: %s", error, extra=log_fields_of(task))
            await self._forget(running)
            return
        if _is_settled(exchange, reply):
            await self._delete(task)
            await self._forget(running)
        else:
            # No await from here on: the client gets the handle, and all later frames of the call go to the task.
            exchange.become(running, created_result(task, self._handles.of_record(task)))
            reply.became_task(running.hold)
            logger.info("a call has become a task", extra=log_fields_of(task))
            self._table.noted(task, "made")

    async def _store(self, task: Task) -> None:
        await self._table.names.add(task.name)
        await self._table.store.create(task)

    async def _forget(self, running: RunningTask) -> None:
        self._table.remove(running)
        await self._quotas.give_back(running.task)

    async def _delete(self, task: Task) -> None:
        """Let a stored task expire soon, because no client has its handle."""
        try:
            await self._table.store.replace(
                replace(task, status="cancelled", ttl_s=self._table.clock() - task.created_at + _GONE_AFTER_S)
            )
        except StoreError:
            logger.debug("a task without a client stays until it expires", extra=log_fields_of(task))

    def _new(self, live: LiveSession, exchange: TaskExchange, request: Request, tool: Called) -> Task:
        now, session = self._table.clock(), live.session
        call = b""
        if tool.is_repeatable:
            call = stored(request.params, exchange.context, is_legacy=request.era is not MODERN)
        answered = {} if exchange.suspended is None else exchange.suspended.answers  # before it was a task
        return Task(
            id=new_task_id(),
            session_id=session.id,
            principal=session.principal,
            origin=session.origin,
            endpoint=request.endpoint,
            server=tool.server,
            tool=tool.name,
            operation=tool.operation,
            created_at=now,
            updated_at=now,
            ttl_s=self._settings.working_ttl_s(self._settings.outcome_ttl_s(exchange.kept_s)),
            kept_s=exchange.kept_s,
            poll_ms=self._settings.poll_ms,
            request=call,
            is_repeatable=bool(call),
            answers=RecordedAnswers.of(answered).encoded() if call else b"",
            epoch=session.epoch,
        )


async def _accept(reply: TaskableReply, accepting: Awaitable[Answer]) -> None:
    try:
        reply.accepted(await accepting)
    except BaseException as error:
        reply.refused(error)
        if isinstance(error, asyncio.CancelledError):
            raise


def _is_settled(exchange: TaskExchange, reply: TaskableReply) -> bool:
    """Return True if the call must not become a task any more: it has ended, asks its client, or its client has
    disconnected."""
    return exchange.is_over or exchange.is_suspended or reply.is_gone
