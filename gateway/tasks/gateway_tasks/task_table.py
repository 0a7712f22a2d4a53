"""Track the tasks whose calls are in flight on this replica, and notify all replicas of changes."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from time import time
from typing import Final

from gateway.config.limits import TaskSettings
from gateway.tasks.gateway_tasks.quotas import RunningNames
from gateway.tasks.gateway_tasks.running_task import RunningTask
from gateway.tasks.gateway_tasks.task_exchange import TaskExchange
from gateway.tasks.gateway_tasks.task_record_writer import TaskRecordWriter
from gateway.tasks.gateway_tasks.task_states import may_run_again
from session_store import Bus, StoreUnavailable, Task, TaskStore
from session_store.session import redact
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

_STOPPED: Final = "the gateway was stopped before the call ended. Outcome unknown: the call may have taken effect"

_UNSENT: Final = "the gateway was stopped before the call was sent to its server"

_NO_ROOM: Final = (
    "the store of tasks is full, or what its principal may have of it (256 MiB): the server's questions are not kept"
)


def topic_of(session_id: str) -> str:
    """Return the bus topic of a session's tasks. Each message on it is the id (`Task.id`) of a task that has
    changed."""
    return f"mcp:tasks:{session_id}"


def log_fields_of(task: Task) -> dict[str, str]:
    """Return the fields of a log line about a task, with shortened ids."""
    return {"session": redact(task.session_id), "task": redact(task.id), "server": task.server, "tool": task.tool}


@dataclass(eq=False, repr=False)
class TaskTable:
    """Holds the tasks that this replica runs. A task is added before it is stored, and removed when its outcome is
    stored."""

    settings: TaskSettings
    store: TaskStore
    names: RunningNames
    """Tells other replicas which tasks this one runs."""
    bus: Bus
    _: KW_ONLY
    noted: Callable[[Task, str], None]
    """Called with a task and an event of it, one of `gateway.observability.metrics.TASK_EVENTS`, to count and record
    the event."""
    clock: Callable[[], float] = time
    """Returns Unix time in seconds."""
    is_kept: bool = True
    """True if the store outlives this process."""
    _running: dict[str, RunningTask] = field(init=False, default_factory=dict)
    _tasks: Tasks = field(init=False, default_factory=lambda: Tasks("tasks"))

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningTask]:
        return iter(tuple(self._running.values()))

    def get(self, name: str) -> RunningTask | None:
        """Return the running task with this name (`Task.name`); None if it does not run on this replica."""
        return self._running.get(name)

    def add(self, task: Task, exchange: TaskExchange) -> RunningTask:
        """Begin to run a task, whose call is `exchange`, and return the running task. The caller stores the task's
        record."""

        def changed(written: Task) -> None:
            self._publish(written)
            exchange.stored(written)

        def no_room() -> None:
            running.cancel(_NO_ROOM)

        record = TaskRecordWriter(task, self.store, changed=changed, no_room=no_room, clock=self.clock)
        running = RunningTask(exchange, record, self.settings, ended=self._ended, is_kept=self.is_kept)
        self._running[task.name] = running
        return running

    def cancel(self, name: str, reason: str) -> bool:
        """Cancel a task for an operator. Return True if it was running and is cancelled now. Return False if it does
        not run on this replica or has ended."""
        running = self._running.get(name)
        if running is None or running.task.is_over:
            return False
        running.cancel(reason)
        return True

    def stop(self) -> None:
        """End the working tasks, because the gateway stops, so that their records get an outcome at once. Leave those
        that another owner can continue."""
        left = [running for running in self if not running.task.is_over]
        if left:
            ended = sum(_end(running) for running in left)
            logger.warning(
                "the gateway stops with %d tasks that work: %d end with it, and %d go on elsewhere or later",
                len(left),
                ended,
                len(left) - ended,
            )

    def report(self, task: Task, what: str) -> None:
        """Count and publish a change of `task` that was written to the store directly, not by its running task. `what`
        is the event, one of `TASK_EVENTS`."""
        self.noted(task, what)
        self._publish(task)

    def _publish(self, task: Task) -> None:
        """Notify all replicas that the store has a new version of the task. A lost message is harmless: subscribers
        read the record, and clients can poll."""
        self._tasks.spawn(_tried(self.bus.publish, topic_of(task.session_id), task.id.encode()))

    def remove(self, running: RunningTask) -> None:
        """Remove a running task whose outcome does not come from here: it was given up before its client got a handle,
        or another replica runs it."""
        if self._running.get(running.name) is running:
            del self._running[running.name]
        self.forget_name(running.name)

    def forget_name(self, name: str) -> None:
        """Delete, in the background, the stored name by which other replicas know that this replica runs this task. If
        that fails, these replicas find later that the task has ended."""
        self._tasks.spawn(_tried(self.names.remove, name))

    def _ended(self, running: RunningTask) -> None:
        self.noted(running.task, _what_became_of(running))
        if self._running.get(running.name) is running:
            del self._running[running.name]
        if running.is_left:
            self._tasks.spawn(_tried(self.names.leave, running.name))
        else:
            self.forget_name(running.name)

    def renew(self) -> None:
        """Extend the lifetimes of the stored records of working tasks, as far as they are due for it. Called
        periodically."""
        for running in self:
            if running.record.renew(self.settings.working_ttl_s(running.kept_s)):
                # The next renewal comes long before the names expire.
                self._tasks.spawn(_tried(self.names.renew, running.task))

    async def settled(self) -> None:
        """Wait until the outcomes of all ended tasks are stored."""
        for running in self:
            await running.settled()
        await self._tasks.settled()


async def _tried(write: Callable[..., Awaitable[object]], *arguments: object) -> None:
    """Call `write`, which writes to the store, with the arguments. Do nothing if the store does not answer."""
    with contextlib.suppress(StoreUnavailable):
        await write(*arguments)


def _what_became_of(running: RunningTask) -> str:
    """Return how a task has ended on this replica: one of `gateway.observability.metrics.TASK_EVENTS`."""
    if running.is_left or running.record.is_lost:
        return "left"
    if running.is_unknown:
        return "unknown"
    return "tool error" if running.task.is_tool_error else running.task.status


def _end(running: RunningTask) -> bool:
    """End a task, because the gateway stops, and return True. If another owner can continue the task, leave its record
    unchanged and return False."""
    exchange = running.exchange
    if running.task.upstream_id or may_run_again(running.task) or exchange.work is not running:
        return False
    if exchange.conversation is None or not exchange.number:
        running.cancel(_UNSENT)
    else:
        running.give_up(_STOPPED, tells=True)
    return True
