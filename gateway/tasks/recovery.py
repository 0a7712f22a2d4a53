"""What becomes of tasks whose owner is gone: nothing runs twice silently, and nothing stays unknown for ever.

A task of a tool that says that calling it twice does no more than calling it once runs again, once, if its principal
has today the rights that the call had. Any other fails: its outcome is unknown.
"""

import logging
import random
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.calls.live_session import LiveSessions
from gateway.cluster.ownership import Cluster
from gateway.context.facts import new_correlation_id
from gateway.errors import OUTCOME_UNKNOWN, error_of
from gateway.identity.request_context import RequestContext
from gateway.observability.logs import CORRELATION
from gateway.protocol.capabilities import caller_of_meta
from gateway.sessions.attach import SessionAttacher
from gateway.tasks.asked import AskedExchange
from gateway.tasks.exchange import TaskExchange, fail_unsent
from gateway.tasks.messages import message_of
from gateway.tasks.quotas import parts_of
from gateway.tasks.recorded_answers import RecordedAnswers
from gateway.tasks.running import RunningTask
from gateway.tasks.stored_call import StoredCall
from gateway.tasks.table import TaskTable
from gateway.tasks.task_state import TaskEvent, after
from session_store import Context, Principal, Session, SessionStore, StoreUnavailable, Task
from session_store.session import redact
from transports.era import Era
from transports.inbound_port import Answer, Request
from transports.jsonrpc import Object, encode
from transports.reply_queue import ReplyQueue
from transports.soon import Soon, arrived
from transports.tasks import Tasks

__all__ = ["StartCall", "TaskRecovery"]

logger = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""How many tasks of lost owners one `sweep` looks at."""

_UNDECIDED: Final = 1_000
"""How many tasks are remembered whose failure was logged."""

_UNKNOWN: Final = (
    "Outcome unknown: the gateway that ran this task ended without an answer; the call may have taken effect"
)
_UNKNOWN_AGAIN: Final = (
    "Outcome unknown: this task was started again, and the second gateway that ran it ended without an answer as well; "
    "the call may have taken effect once or twice"
)
_NO_SESSION: Final = "Outcome unknown: the session of this task ended without an answer; the call may have taken effect"
_NO_RIGHTS: Final = f"{_UNKNOWN}. It is not started again: {{why}}"

StartCall = Callable[[TaskExchange, Request, RequestContext, Object], Soon[Answer]]
"""Sends a call to its server, as if its client had sent it (`gateway.relay.intake`)."""

WhyLost = Callable[[Principal, Context], str]
"""Why a principal may not do today what a context has granted to it; empty if it may."""


class TaskRecovery:
    """Decides on the tasks that nobody runs. `start` sends the call of a task that runs again. No client is
    there whose credential says what it may do: `why_lost` decides, from the present configuration. `handle_of` gives
    the id of a task for its client."""

    def __init__(
        self,
        table: TaskTable,
        *,
        sessions: SessionStore,
        live: LiveSessions,
        attacher: SessionAttacher,
        cluster: Cluster | None,
        start: StartCall,
        why_lost: WhyLost,
        handle_of: Callable[[Task], str],
    ) -> None:
        self._table = table
        self._sessions = sessions
        self._live = live
        self._attacher = attacher
        self._cluster = cluster
        self._start = start
        self._why_lost = why_lost
        self._handle_of = handle_of
        self._undecided: dict[str, None] = {}  # names of tasks whose failure was logged
        self._tasks = Tasks("recovery of tasks")

    def is_here(self, session: Session) -> bool:
        """Whether this replica owns a session, so that it decides on its tasks."""
        return self._cluster is None or session.owner == self._cluster.replica

    async def decide(self, task: Task, session: Session | None) -> None:
        """Decide on a task that works by its record and is run by nobody. `session` is this replica's; None if it has
        ended. Concurrent callers share one decision.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if not task.is_over and self._table.get(task.name) is None:
            await self._tasks.share(task.name, lambda: self._decide(task, session))

    async def _decide(self, task: Task, session: Session | None) -> None:
        call = _call_of(task) if task.is_repeatable and task.runs == 1 else None
        if session is None or call is None:
            await self._give_up(task, _unknown(task, session))
            return
        # The server is started with the rights of the session, and the call has its own.
        why = self._why_lost(task.principal, call.context) or self._why_lost(task.principal, session.context)
        if why:
            await self._give_up(task, _NO_RIGHTS.format(why=why))
        else:
            await self._run_again(task, session, call)

    async def _give_up(self, task: Task, reason: str) -> None:
        now = self._table.clock()
        error = encode(error_of(OUTCOME_UNKNOWN, reason, ""))
        failed = replace(
            task,
            status=after(task.status, TaskEvent.FAIL),
            questions=b"",
            answers=b"",
            error=error,
            message=reason,
            updated_at=now,
            ttl_s=now - task.created_at + self._table.settings.ttl_s,
        )
        if await self._table.store.replace(failed):
            self._table.reported(failed, "unknown")
            logger.warning("the outcome of a task is unknown: its gateway is gone", extra=_fields(task))

    # -- running again

    async def _run_again(self, task: Task, session: Session, call: StoredCall) -> None:
        """Run a task again. The record says so first: if this replica dies as well, nobody runs it a third time."""
        live = self._live.get(session.id)
        if live is None:
            self._attacher.take_over(session)
            live = self._live.of(session)
        await live.recover()
        params, raw = call.params, call.params.get("_meta", msgspec.Raw(b"{}"))
        if call.is_legacy:
            exchange: TaskExchange = AskedExchange.of(live, call.context, handle=self._handle_of(task))
        else:
            exchange = TaskExchange(
                method="tools/call",
                client_id=0,
                live=live,
                replies=ReplyQueue(),
                caller=caller_of_meta(raw),
                context=call.context,
            )
        again = replace(
            task,
            runs=task.runs + 1,
            epoch=session.epoch,
            status=after(task.status, TaskEvent.RUN_AGAIN),
            questions=b"",
            answers=b"",
            message=message_of(task.runs + 1),
            updated_at=self._table.clock(),
        )
        running = self._table.add(replace(again, version=again.version + 1), exchange)
        try:
            await self._table.names.add(task.name)
            is_mine = await self._table.store.replace(again)
        except BaseException:
            self._table.remove(running)
            raise
        if not is_mine:
            self._table.remove(running)
            return
        self._table.reported(again, "run again")
        logger.warning("a task runs again: its gateway is gone", extra=_fields(task))
        exchange.run_as(running, task.asked, RecordedAnswers(task.answers))
        era = Era.LEGACY if call.is_legacy else Era.MODERN
        request = Request(era=era, endpoint=task.endpoint, headers={}, params=params, meta=msgspec.json.decode(raw))
        who = RequestContext(task.principal, None, new_correlation_id())
        self._tasks.spawn(self._send(running, request, who, params))

    async def _send(self, running: RunningTask, request: Request, who: RequestContext, params: Object) -> None:
        CORRELATION.set(who.correlation)  # of this task
        exchange = running.exchange
        try:
            running.hold(await arrived(self._start(exchange, request, who, params)))
        except Exception as error:  # nobody else would end the task
            fail_unsent(exchange, error)

    # -- tasks that nobody asks for

    async def sweep(self) -> None:
        """Decide on tasks of replicas that are gone, some at a time.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        names, cluster = self._table.names, self._cluster
        if cluster is not None and (
            cluster.is_leaving or not cluster.is_reachable or not cluster.trusts_expired_leases
        ):
            return
        known = await names.replicas()
        if not known:
            return
        alive = {names.replica} if cluster is None else {names.replica, *await cluster.replicas()}
        left = AT_ONCE
        for replica in known:
            if replica in alive and not (cluster is None and replica == names.replica):
                continue
            running = [name for name in await names.of(replica) if self._table.get(name) is None]
            if not running and replica != names.replica:
                await names.forget(replica)
            for name in random.sample(running, min(left, len(running))):
                left -= 1
                if await self._try_to_settle(name, alive):
                    await names.remove(name, replica)

    async def _try_to_settle(self, name: str, alive: set[str]) -> bool:
        """As `_is_settled`. A task that cannot be decided on, such as one of another version, keeps no other from
        being decided on, and its failure is logged once."""
        try:
            is_settled = await self._is_settled(name, alive)
        except StoreUnavailable:
            raise
        except Exception:
            if name not in self._undecided:
                logger.exception("a task whose gateway is gone cannot be decided on", extra={"task": redact(name)})
            self._undecided[name] = None
            if len(self._undecided) > _UNDECIDED:
                del self._undecided[next(iter(self._undecided))]
            return False
        self._undecided.pop(name, None)
        return is_settled

    async def _is_settled(self, name: str, alive: set[str]) -> bool:
        """Decide on one task, if this replica may. False if another one has to."""
        session_id, task_id = parts_of(name)
        task = await self._table.store.get(session_id, task_id)
        if task is None or task.is_over or self._table.get(name) is not None:
            return True
        session = await self._sessions.peek(session_id)
        if session is not None and not self.is_here(session):
            if session.owner in alive:
                return session.epoch == task.epoch  # else its owner decides, which sweeps as well
            if task.is_repeatable and task.runs == 1:
                assert self._cluster is not None
                session = await self._cluster.claim(session)
                if session is not None and not self.is_here(session):
                    return False
                if session is not None:
                    self._attacher.take_over(session)
        await self.decide(task, session)
        return True

    async def settled(self) -> None:
        """Wait until what was begun is done."""
        await self._tasks.settled()


def _call_of(task: Task) -> StoredCall | None:
    """The call of a task. None: it was stored by another version, and cannot run again."""
    try:
        return StoredCall.read(task.request)
    except msgspec.MsgspecError:
        return None


def _unknown(task: Task, session: Session | None) -> str:
    """Why nobody knows what has become of a task."""
    if task.runs > 1:
        return _UNKNOWN_AGAIN
    return _NO_SESSION if session is None else _UNKNOWN


def _fields(task: Task) -> dict[str, str]:
    return {"session": redact(task.session_id), "task": redact(task.id), "server": task.server, "tool": task.tool}
