"""Continue tasks whose replica is gone: follow the task that the server has created for the call, or send the call
again.

`gateway.tasks.gateway_tasks.recovery` decides which of the two is allowed.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.bridge.legacy_server import LegacyTaskBridge
from gateway.bridge.modern_server_subscriptions import declaration_of
from gateway.bridge.task_follower import FollowedTask, register_sent
from gateway.calls.client_request import IncomingCall
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import fallback_id
from gateway.calls.lifecycles import ExchangeEvent
from gateway.calls.live_session import LiveSession, LiveSessions, live_session_of
from gateway.context.session_facts import new_correlation_id
from gateway.identity.request_context import RequestContext
from gateway.observability.logs import CORRELATION
from gateway.protocol.client_capabilities import ClientDeclaration, declaration_in_meta
from gateway.protocol.tasks import with_tasks
from gateway.sessions.session_attaching import SessionAttacher
from gateway.tasks.gateway_tasks.questions_to_client import ServerTask
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.stored_call import FollowedCall, RecordedAnswers, StoredCall
from gateway.tasks.gateway_tasks.task_exchange import RequestedExchange, TaskExchange, fail_unsent
from gateway.tasks.gateway_tasks.task_states import TaskEvent, after, message_of
from gateway.tasks.gateway_tasks.task_table import TaskTable, log_fields_of
from gateway.tasks.relay_interfaces import CallIntake, TaskServers
from gateway.tasks.task_handles import TaskHandles
from session_store import Session, Task
from transports.background_tasks import Tasks
from transports.era import LEGACY, Era
from transports.inbound_port import Request
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class TaskContinuation:
    """Takes over tasks that no replica runs, and runs them on this replica. If several replicas try, only one
    succeeds."""

    table: TaskTable
    live: LiveSessions
    attacher: SessionAttacher
    _: KW_ONLY
    calls: CallIntake
    """Sends a stored call as if its client had sent it."""
    endpoints: Mapping[str, TaskServers]
    """The servers of each endpoint, by the endpoint's URL path."""
    handles: TaskHandles
    _tasks: Tasks = field(init=False, default_factory=lambda: Tasks("continuation of tasks"))

    # -- the server's own task

    async def follow(self, task: Task, session: Session, call: StoredCall, lost: Callable[[RunningTask], None]) -> bool:
        """Take a task over, and follow the task that its server has created for the call. Return True if this replica
        or another one has taken the task over. Return False if this replica cannot reach the server's task.

        `lost` is called if the server no longer knows its task. It gets the running task, whose call is still in
        flight, and must end the call or send it again. Raises `StoreUnavailable`.
        """
        followed, endpoint = call.followed, self.endpoints.get(task.endpoint)
        upstream = None if endpoint is None else endpoint.server(task.server, call.context)
        if followed is None or upstream is None or not upstream.settings.is_remote:
            return False
        live = await self._live_of(session)
        correlation = new_correlation_id()
        try:
            conversation = upstream.conversation(live, followed.task.era, correlation, followed.caller)
            await conversation.join(live)
        except UpstreamUnavailable:
            return False
        exchange = self._exchange(task, live, call, followed.caller)
        exchange.begin(monotonic(), correlation, None)
        running = await self._take(
            replace(task, epoch=session.epoch, status=after(task.status, TaskEvent.FOLLOW), questions=b""), exchange
        )
        if running is None:
            return True
        self.table.report(running.task, "followed")
        logger.info("the task of a server is followed again: its gateway is gone", extra=log_fields_of(task))
        exchange.move_to(live)
        register_sent(conversation, exchange)
        self._resume(running, conversation, followed, lambda: lost(running))
        return True

    def _resume(
        self, running: RunningTask, conversation: Conversation, followed: FollowedCall, lost: Callable[[], None]
    ) -> None:
        exchange = running.exchange
        if conversation.era is LEGACY:
            LegacyTaskBridge(conversation).resume(exchange, followed.task, lost)
        elif exchange.declaration is not None:
            ServerTask(exchange, running, conversation).resume(followed.task, lost)
        else:
            live = live_session_of(exchange)
            assert live is not None
            meta = with_tasks(declaration_of(live).meta(live.session.log_level))
            FollowedTask(conversation, exchange, {}, meta).resume(followed.task, lost)

    # -- the call

    async def run_again(self, task: Task, session: Session, call: StoredCall) -> None:
        """Take a task over, and send its call again. The store records this before the call is sent: if this replica
        dies, no other replica sends the call a third time. Do nothing if another replica has taken the task over.
        Raises `StoreUnavailable`."""
        live = await self._live_of(session)
        exchange = self._exchange(task, live, call, declaration_in_meta(_meta_of(call)))
        running = await self._take(replace(task, epoch=session.epoch, questions=b"", **_again(task)), exchange)
        if running is not None:
            exchange.run_as(running, task.asked, RecordedAnswers(task.answers))
            self._runs_again(running)
            self._tasks.spawn(self._send(running, call))

    async def run_instead(self, running: RunningTask, call: StoredCall) -> None:
        """Send the call of a running task again, because the server no longer knows its own task for the call. First
        record this in the store. If the store does not take the record, fail the task. Do nothing if the call has
        ended."""
        exchange, task = running.exchange, running.task
        if exchange.is_over:  # it was cancelled meanwhile
            return
        running.record.change(**_again(task))
        if not await running.record.written():
            running.give_up("another gateway has taken the task over")
        elif not exchange.is_over:
            assert isinstance(exchange.conversation, Conversation)
            exchange.conversation.move_to_waiting(exchange, ExchangeEvent.REQUEUE)
            exchange.run_as(running, task.asked, RecordedAnswers(task.answers))
            self._runs_again(running)
            await self._send(running, call)

    def _runs_again(self, running: RunningTask) -> None:
        self.table.report(running.task, "run again")
        logger.warning("a task runs again: its gateway is gone", extra=log_fields_of(running.task))

    async def _send(self, running: RunningTask, call: StoredCall) -> None:
        task, exchange = running.task, running.exchange
        who = RequestContext(task.principal, None, new_correlation_id())
        CORRELATION.set(who.correlation)  # of this task
        meta = msgspec.json.decode(_meta_of(call))
        era = Era.LEGACY if call.is_legacy else Era.MODERN
        request = Request(era=era, endpoint=task.endpoint, headers={}, params=call.params, meta=meta)
        try:
            running.hold(await self.calls.accept(IncomingCall(exchange, request, who, call.params)))
        except Exception as error:  # nothing else would end the task
            fail_unsent(exchange, error)

    # -- both

    async def _live_of(self, session: Session) -> LiveSession:
        live = self.live.get(session.id)
        if live is None:
            self.attacher.take_over(session)
            live = self.live.of(session)
        await live.recover()
        return live

    def _exchange(
        self, task: Task, live: LiveSession, call: StoredCall, declaration: ClientDeclaration | None
    ) -> TaskExchange:
        """Return a new exchange for the stored call of a task. No client waits for its answer. `declaration` has the
        capabilities that a modern client has declared; it is ignored for a legacy client."""
        if call.is_legacy:
            return RequestedExchange.of(live, call.context, handle=self.handles.of_record(task))
        return TaskExchange(
            method="tools/call",
            client_id=fallback_id(),
            live=live,
            declaration=declaration,
            context=call.context,
        )

    async def _take(self, changed: Task, exchange: TaskExchange) -> RunningTask | None:
        """Take a task over by storing `changed`, its new record, and run the task with this exchange. Return the
        running task; None if another replica was first."""
        changed = replace(changed, updated_at=self.table.clock())
        await self.table.names.add(changed.name)
        if not await self.table.store.replace(changed):
            self.table.forget_name(changed.name)
            return None
        # Only now: a request to cancel the task waits for this decision, and then finds the task in the table.
        running = self.table.add(replace(changed, version=changed.version + 1), exchange)
        exchange.run_as(running, changed.asked)
        return running

    async def settled(self) -> None:
        """Wait until all calls that are being sent again were sent."""
        await self._tasks.settled()


def _again(task: Task) -> dict[str, Any]:
    """Return the fields of a task's record that change when the call is sent again, with their new values."""
    runs = task.runs + 1
    status = after(task.status, TaskEvent.RUN_AGAIN)
    return {"runs": runs, "status": status, "answers": b"", "message": message_of(runs), "upstream_id": ""}


def _meta_of(call: StoredCall) -> msgspec.Raw:
    return call.params.get("_meta", msgspec.Raw(b"{}"))
