"""Cache the record of one task on the replica that runs it, and write its changes to the store.

Changes are written in order, one at a time, by compare-and-set. After another replica has taken the task over, nothing
more is written.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace

from gateway.errors import error_of
from session_store import StoreFull, StoreUnavailable, Task, TaskStore
from transports.background_tasks import Tasks
from transports.jsonrpc import INTERNAL_ERROR, encode

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""Minimum seconds between two writes of changes that can wait, such as progress."""

_AGAIN_S: Final = 0.5
"""Seconds between a failure of the store and the next attempt."""

_FAILURES: Final = 5
"""Maximum number of retries of a change that the store rejects. An unreachable store is retried without limit."""

_FULL: Final = (
    "The store of tasks is full, or what its principal may have of it (256 MiB): what the server has sent is not kept. "
    "The call may have taken effect."
)

_NOT_KEPT: Final[dict[str, Any]] = {
    "status": "failed",
    "message": _FULL,
    "error": encode(error_of(INTERNAL_ERROR, _FULL, "")),
    "request": b"",
    "questions": b"",
    "answers": b"",
    "result": b"",
    "is_tool_error": False,
    "reason": "",
}
"""The fields that are written in place of an outcome for which the store has no room. They always fit."""

_LEFT_OUT: Final = (("answers",), ("request", "upstream_id"))
"""Fields of a working task that are not written to a full store, the least useful first. Without `answers`, the client
is asked again if the call runs again. Without the others, the next owner cannot follow the server's task."""


class TaskRecordWriter:
    """Caches the record of a task that this replica owns, and writes it to the store.

    `task` has all changes, including those not written yet. `changed` is called with each version that was written.
    `no_room` is called if the store has no room for the questions of the call. `clock` returns Unix time in seconds.
    """

    def __init__(
        self,
        task: Task,
        store: TaskStore,
        *,
        changed: Callable[[Task], None],
        no_room: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.task = task
        self.is_lost = False
        """Set once another replica has taken the task over, or it was deleted, or the store refuses its record."""
        self._stored = task
        self._store = store
        self._changed = changed
        self._no_room = no_room
        self._clock = clock
        self._waiting: dict[str, Any] = {}
        self._urgent = asyncio.Event()
        self._written_at = -EVERY_S
        self._tasks = Tasks("record of a task")

    @property
    def told(self) -> Task | None:
        """Return the task with all changes, as clients may see it. Return None if the task has ended or was lost:
        clients must then see the stored record, because an outcome counts only when it is stored."""
        return None if self.task.is_over or self.is_lost else self.task

    @property
    def now(self) -> float:
        """Return the present Unix time in seconds."""
        return self._clock()

    def change(self, *, can_wait: bool = False, **fields: Any) -> None:
        """Set fields of the record at once, and write them to the store in the background. `can_wait`: the write may
        come up to `EVERY_S` seconds later. Do nothing if the task was lost."""
        if self.is_lost:
            return
        fields["updated_at"] = self._clock()
        self.task = replace(self.task, **fields)
        self._waiting |= fields
        if not can_wait:
            self._urgent.set()
        self._tasks.start("write", self._write)

    async def written(self) -> bool:
        """Wait until the store has all changes. Return False if the task was lost (taken over or deleted), or the store
        rejects the record."""
        self._urgent.set()
        while (writing := self._tasks.running("write")) is not None:
            await asyncio.wait((writing,))
        return not self.is_lost and not self._waiting

    def renew(self, kept_s: float) -> bool:
        """Extend the lifetime of a working task to `kept_s` seconds from now, if less than half of `kept_s` is left.
        Return True if it was extended."""
        now = self._clock()
        is_due = not self.is_lost and not self.task.is_over and self.task.expires_at - now < kept_s / 2
        if is_due:
            self.change(can_wait=True, ttl_s=now - self.task.created_at + kept_s)
        return is_due

    async def close(self, within_s: float = 0.0) -> None:
        """Stop writing. First wait up to `within_s` seconds until the store has all changes."""
        if within_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self.written()
        self.is_lost = True
        await self._tasks.close()

    async def _write(self) -> None:
        failures = 0
        while self._waiting and not self.is_lost:
            with contextlib.suppress(TimeoutError):  # what can wait is written when it is due
                async with asyncio.timeout(self._written_at + EVERY_S - monotonic()):
                    await self._urgent.wait()
            fields, self._waiting = self._waiting, {}
            self._urgent.clear()
            try:
                written = await self._replace(fields)
            except StoreFull:
                if not self._leave_out(fields):
                    await asyncio.sleep(_AGAIN_S)
                self._urgent.set()
                continue
            except BaseException as error:
                self._waiting = fields | self._waiting
                failures += not isinstance(error, StoreUnavailable)
                if not isinstance(error, Exception):
                    raise
                if failures > _FAILURES:
                    logger.exception("a task is lost: the store does not take its record")
                    self.is_lost = True
                    return
                await asyncio.sleep(_AGAIN_S)
                self._urgent.set()
                continue
            failures = 0
            if written is None:
                self.is_lost = True
                return
            self._stored = written
            self._written_at = monotonic()
            try:
                self._changed(written)
            except Exception:  # later changes are still written
                logger.exception("a change of a task is stored, but not every client was notified")

    def _leave_out(self, fields: dict[str, Any]) -> bool:
        """Queue the changes `fields`, for which the store had no room, once more: without those parts that the task can
        do without. Return False if nothing can be left out."""
        tried = replace(self._stored, **fields)
        left_out: dict[str, Any] = {}
        if tried.is_over:
            left_out = _NOT_KEPT
        elif not self.task.is_over:  # otherwise its outcome is written next, and may need less room
            left_out = self._without_growth(tried)
        self.task = replace(self.task, **left_out)
        waiting = fields | self._waiting | left_out
        is_less, self._waiting = waiting != fields, waiting
        return is_less

    def _without_growth(self, tried: Task) -> dict[str, Any]:
        """Return values for some fields of `tried`, a record that does not fit into the full store, so that it may fit.
        These are the least useful fields that have grown, with their stored values. If only the questions have grown,
        call `no_room` and return empty questions. Return an empty dict if nothing has grown."""
        for names in _LEFT_OUT:
            if len(getattr(tried, names[0])) > len(getattr(self._stored, names[0])):
                logger.warning("the store of tasks is full: %s of a task are not kept", " and ".join(names))
                return {name: getattr(self._stored, name) for name in names}
        if len(tried.questions) > len(self._stored.questions):
            self._no_room()  # nobody could answer them
            return {"questions": b""}
        return {}

    async def _replace(self, fields: dict[str, Any]) -> Task | None:
        """Write the stored record with `fields` changed. Return the record as it is stored now; None if this replica no
        longer owns the task."""
        for _ in range(2):
            after = replace(self._stored, **fields)
            if await self._store.replace(after):
                return replace(after, version=after.version + 1)
            # Either another replica owns it, or an earlier write took effect although the store did not answer.
            found = await self._store.get(after.session_id, after.id)
            if found is not None and replace(found, version=after.version) == after:
                return found
            if found is None or found.is_over or (found.epoch, found.runs) != (after.epoch, after.runs):
                return None
            self._stored = found
        return None
