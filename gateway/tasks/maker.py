"""Makes tasks of slow calls: the client gets a handle, and the call goes on.

The order is the promise: the store has the task before the handle leaves. If the store cannot be written, or the client
has as many tasks as it may have, the call stays an ordinary call.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gateway.calls.live_session import LiveSession, live_session_of
from gateway.protocol.listing import Called
from gateway.tasks.answers import created_result
from gateway.tasks.exchange import TaskExchange
from gateway.tasks.handles import TaskHandles
from gateway.tasks.quotas import TaskQuotas
from gateway.tasks.recorded_answers import RecordedAnswers
from gateway.tasks.refusals import too_many_tasks
from gateway.tasks.reply import Headers, TaskableReply
from gateway.tasks.running import RunningTask
from gateway.tasks.stored_call import stored
from gateway.tasks.table import TaskTable
from session_store import StoreError, Task
from session_store.session import new_task_id, redact
from transports.era import MODERN
from transports.inbound_port import Answer, Request
from transports.soon import Soon, arrived, is_there
from transports.tasks import Tasks

__all__ = ["TaskMaker", "ToolOf"]

logger = logging.getLogger(__name__)

_GONE_AFTER_S: Final = 0.05
"""How long a stored task is kept that has no client."""

ToolOf = Callable[[], Called]
"""The tool of a call, as far as it is known now."""


class TaskMaker:
    """Accepts calls that can become tasks, and makes tasks of those that are slow."""

    def __init__(self, table: TaskTable, quotas: TaskQuotas, handles: TaskHandles) -> None:
        self._table = table
        self._settings = table.settings
        self._quotas = quotas
        self._handles = handles
        self._tasks = Tasks("making of tasks")

    def answer(
        self, exchange: TaskExchange, request: Request, headers: Headers, accepting: Soon[Answer], tool_of: ToolOf
    ) -> Soon[Answer]:
        """The reply to a call. `accepting` sends the call to its server, and returns the reply that the client gets if
        the call becomes no task.

        Raises: as `accepting` does.
        """
        reply = self._begin(exchange, request, headers, tool_of)
        if not is_there(accepting):
            return self._answered(reply, accepting)
        reply.accepted(accepting)
        return reply

    async def _answered(self, reply: TaskableReply, accepting: Soon[Answer]) -> Answer:
        """The reply, once the call was sent or has become a task."""
        sending = self._tasks.spawn(_accept(reply, accepting))
        try:
            await reply.answered
        except BaseException:
            sending.cancel()
            await reply.done()
            raise
        return reply

    def resumed(self, exchange: TaskExchange, request: Request, inner: Answer, tool_of: ToolOf) -> Answer:
        """The reply to a client that is back with answers to a question that was asked before the call became a
        task."""
        reply = self._begin(exchange, request, inner.headers, tool_of)
        reply.accepted(inner)
        return reply

    def _begin(self, exchange: TaskExchange, request: Request, headers: Headers, tool_of: ToolOf) -> TaskableReply:
        reply = TaskableReply(exchange, headers)
        tool = tool_of()
        is_at_once = tool.needs_task or self._settings.is_at_once(tool.server, tool.name)
        reply.begin_after(
            0.0 if is_at_once else self._settings.after_s,
            lambda: self._make_soon(exchange, request, reply, tool_of),
        )
        return reply

    async def begin(self, exchange: TaskExchange, request: Request, tool: Called) -> RunningTask:
        """Store the task of a call that is about to be sent, and whose answer nobody waits for.

        Raises:
            Refused: the session or its principal has as many tasks as it may have.
            StoreError: the store cannot be written.
        """
        live = live_session_of(exchange)
        assert live is not None
        task = self._new(live, exchange, request, tool)
        if not await self._quotas.hold(task):
            self._table.noted(task, "refused")
            raise too_many_tasks()
        running = self._table.add(task, exchange)
        exchange.run_as(running, 0)
        try:
            await self._table.names.add(task.name)
            await self._table.store.create(task)
        except BaseException:
            await self._forget(running)
            raise
        self._table.noted(task, "made")
        return running

    async def undo(self, running: RunningTask) -> None:
        """Forget a task whose call was refused, and whose handle nobody has."""
        live, task = live_session_of(running.exchange), running.task
        assert live is not None
        await running.settled()
        with contextlib.suppress(StoreError):  # it stays until it expires
            await self._delete(await self._table.store.get(task.session_id, task.id) or task)
        await self._forget(running)

    def _make_soon(self, exchange: TaskExchange, request: Request, reply: TaskableReply, tool_of: ToolOf) -> None:
        self._tasks.spawn(self._make(exchange, request, reply, tool_of))

    async def _make(self, exchange: TaskExchange, request: Request, reply: TaskableReply, tool_of: ToolOf) -> None:
        """Make a task of a call, unless it is answered or asks something meanwhile."""
        live = live_session_of(exchange)
        if live is None or _is_settled(exchange, reply):
            return
        task = self._new(live, exchange, request, tool_of())
        try:
            if not await self._quotas.hold(task):
                logger.info("a slow call becomes no task: there are too many", extra=_fields(task))
                self._table.noted(task, "refused")
                return
        except StoreError as error:
            logger.info("a slow call becomes no task: %s", error, extra=_fields(task))
            return
        running = self._table.add(task, exchange)
        if not await self._stored(task):
            await self._forget(running)
        elif _is_settled(exchange, reply):
            await self._delete(task)
            await self._forget(running)
        else:
            # No await from here on: the client gets the handle, and all that comes of the call goes to the task.
            exchange.become(running, created_result(task, self._handles.of_record(task)))
            reply.became_task(running.hold)
            logger.info("a call has become a task", extra=_fields(task))
            self._table.noted(task, "made")

    async def _stored(self, task: Task) -> bool:
        try:
            await self._table.names.add(task.name)
            await self._table.store.create(task)
        except StoreError as error:
            logger.info("a slow call becomes no task: %s", error, extra=_fields(task))
            return False
        return True

    async def _forget(self, running: RunningTask) -> None:
        self._table.remove(running)
        await self._quotas.give_back(running.task)

    async def _delete(self, task: Task) -> None:
        """Have a stored task expire at once: no client has its handle."""
        try:
            await self._table.store.replace(
                replace(task, status="cancelled", ttl_s=self._table.clock() - task.created_at + _GONE_AFTER_S)
            )
        except StoreError:
            logger.debug("a task without a client stays until it expires", extra=_fields(task))

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
            answers=RecordedAnswers.of(answered).encoded(self._settings.result_bytes) if call else b"",
            epoch=session.epoch,
        )


async def _accept(reply: TaskableReply, accepting: Soon[Answer]) -> None:
    try:
        reply.accepted(await arrived(accepting))
    except BaseException as error:
        reply.refused(error)
        if isinstance(error, asyncio.CancelledError):
            raise


def _is_settled(exchange: TaskExchange, reply: TaskableReply) -> bool:
    """Whether nobody waits for a task: the call is answered, waits for its client, or its client has left."""
    return exchange.is_over or exchange.is_suspended or reply.is_gone


def _fields(task: Task) -> dict[str, str]:
    return {"session": redact(task.session_id), "task": redact(task.id), "server": task.server, "tool": task.tool}
