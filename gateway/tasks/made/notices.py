"""Notifies streams of the tasks that the gateway makes (ext-tasks, Task Status Notifications).

Whichever replica has the stream reads the record when it has changed: each notification is the whole task.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from gateway.identity.request_context import RequestContext
from gateway.tasks.answers import task_object
from gateway.tasks.handles import TaskHandle
from gateway.tasks.listening import TaskStream, task_notification
from gateway.tasks.made.made_tasks import MadeTasks
from gateway.tasks.made.table import topic_of
from gateway.tasks.refusals import UnknownTask
from session_store import Bus, StoreUnavailable, Task, TaskStore
from transports.tasks import Tasks

__all__ = ["TaskNotices"]

logger = logging.getLogger(__name__)


_AGAIN_S: Final = 1.0
"""How long after a failure of the store the tasks of a stream are read again."""


class TaskNotices:
    """Follows the records of tasks for streams."""

    def __init__(self, made: MadeTasks, store: TaskStore, bus: Bus) -> None:
        self._made = made
        self._store = store
        self._bus = bus
        self._tasks = Tasks("notices of tasks")

    async def follow(self, stream: TaskStream, tasks: Mapping[str, TaskHandle], who: RequestContext) -> list[str]:
        """Notify a stream of tasks, by the texts of their handles, until it ends. The first notification of each is its
        present state. Returns the handles of those that are known.

        Raises:
            Refused: 429, the sessions of the tasks get too many requests.
            StoreUnavailable: the store does not answer.
        """
        sessions: dict[str, dict[str, str]] = {}
        for text, handle in tasks.items():
            try:
                await self._made.find(handle, who)
            except UnknownTask:
                continue
            sessions.setdefault(handle.session_id, {})[handle.id] = text
        for session_id in sorted(sessions):
            await self._made.count(session_id)
        for session_id, texts in sessions.items():
            stream.followed()
            following = self._tasks.spawn(_Following(stream, session_id, texts).run(self._store, self._bus))
            stream.when_done(lambda following=following: _cancel(following))  # type: ignore[misc]  # of this round
        return [text for texts in sessions.values() for text in texts.values()]


def _cancel(following: asyncio.Task[None]) -> None:
    following.cancel()


class _Following:
    """The tasks of one session that a stream is notified of. `texts`: their handles, by id."""

    def __init__(self, stream: TaskStream, session_id: str, texts: Mapping[str, str]) -> None:
        self._stream = stream
        self._session_id = session_id
        self._texts = texts
        self._changed = set(texts)
        self._sent: dict[str, int] = {}  # versions, by id
        self._wake = asyncio.Event()

    async def run(self, store: TaskStore, bus: Bus) -> None:
        """Notify until all tasks are over or gone, or cannot be read."""
        try:
            await self._run(store, bus)
        except Exception:
            logger.exception("a stream is notified of the tasks of a session no more")
        self._stream.unfollowed()

    async def _run(self, store: TaskStore, bus: Bus) -> None:
        while self._texts:
            try:
                async with bus.subscribed(topic_of(self._session_id), self._receive):
                    # What has changed before the subscription is read as well.
                    self._changed |= self._texts.keys()
                    while self._texts:
                        self._wake.clear()
                        await self._read(store)
                        await self._wake.wait()
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)

    def _receive(self, data: bytes | None) -> None:
        """A task has changed; None: messages may have been lost."""
        self._changed |= self._texts.keys() if data is None else {data.decode()} & self._texts.keys()
        if self._changed:
            self._wake.set()

    async def _read(self, store: TaskStore) -> None:
        while self._changed:
            task_id = self._changed.pop()
            try:
                task = await store.get(self._session_id, task_id)
            except StoreUnavailable:
                self._changed.add(task_id)
                raise
            if task is None:
                self._forget(task_id)
            elif task.version > self._sent.get(task_id, 0):
                self._sent[task_id] = task.version
                self._notify(task)

    def _notify(self, task: Task) -> None:
        text = self._texts[task.id]
        self._stream.emit(task_notification(task_object(task, text), text, self._stream.client_id))
        if task.is_over:
            self._forget(task.id)

    def _forget(self, task_id: str) -> None:
        self._texts = {known: text for known, text in self._texts.items() if known != task_id}
        if not self._texts:
            self._wake.set()
