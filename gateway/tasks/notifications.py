"""Notify clients' streams about the tasks that the gateway has created (ext-tasks, Task Status Notifications).

The replica that serves the stream reads a task's record after each change. Each notification has the whole task.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.identity.request_context import RequestContext
from gateway.protocol.params import meta_of
from gateway.protocol.subscription_filter import ACKNOWLEDGED, ENDED, SUBSCRIPTION_ID
from gateway.tasks.errors import UnknownTask
from gateway.tasks.gateway_tasks.task_requests import MadeTasks
from gateway.tasks.gateway_tasks.task_table import topic_of
from gateway.tasks.task_handles import TaskHandle
from gateway.tasks.task_messages import task_object
from session_store import Bus, StoreUnavailable, TaskStore
from transports.background_tasks import Tasks
from transports.jsonrpc import (
    Message,
    Object,
    decode_object,
    encode,
    encode_notification,
    parse,
    splice,
)

logger = logging.getLogger(__name__)

_MAX_EARLY: Final = 256
"""Maximum number of messages (frames) to a stream that wait until its acknowledgement was sent."""

_AGAIN_S: Final = 1.0
"""Seconds between a failure of the store and the next attempt."""


class TaskStream(Exchange):
    """A client's `subscriptions/listen` that names tasks.

    The first frame, the acknowledgement, names the accepted tasks and the other accepted subscriptions. Other frames
    wait until both of these lists are known. A stream that is only about tasks ends when no source of notifications
    about them is left.
    """

    _is_all_tasks = False
    _followers = 0  # servers and sessions that still notify of tasks
    _was_followed = False

    _acknowledgement: bytes | None = None  # the one of the servers
    _accepted: Sequence[str] | None = None  # the handles of the tasks
    _early: tuple[bytes, ...] = ()

    @property
    def is_acknowledged(self) -> bool:
        """Return True if the acknowledgement is complete, so that it can be sent."""
        return self._acknowledgement is not None and self._accepted is not None

    def emit(self, frame: bytes) -> bool:
        if self.is_acknowledged:
            return super().emit(frame)
        if self._acknowledgement is None and parse(frame).method == ACKNOWLEDGED:
            self._acknowledgement = frame
            return self._begin()
        if len(self._early) >= _MAX_EARLY:
            return False
        self._early = (*self._early, frame)
        return True

    def accept(self, handles: Sequence[str]) -> None:
        """Set the handles of the accepted tasks: those of which the client will be notified. Send the acknowledgement
        if the servers' part of it has come."""
        self._accepted = handles
        self._begin()

    def followed(self) -> None:
        """Count one more source of notifications about tasks: a server, or the records of a session. `unfollowed`
        removes it."""
        self._followers += 1
        self._was_followed = True

    def unfollowed(self) -> None:
        """Remove a source of notifications about tasks. A stream that is only about tasks ends with its last source."""
        self._followers -= 1
        self._end_if_silent()

    def about_nothing_else(self) -> None:
        """Record that the client wants only notifications about tasks, so that the stream may end with its last source
        of them."""
        self._is_all_tasks = True

    def _end_if_silent(self) -> None:
        if self._is_all_tasks and self._was_followed and not self._followers and self.is_acknowledged:
            self.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(ENDED)))

    def _begin(self) -> bool:
        """If the acknowledgement is complete, send it, and then the frames that wait for it. Return False if the client
        does not read them, otherwise True."""
        if self._acknowledgement is None or self._accepted is None:
            return True
        early, self._early = self._early, ()
        took = [self.emit(frame) for frame in (_with_tasks(self._acknowledgement, self._accepted), *early)]
        self._end_if_silent()
        return all(took)


def _with_tasks(acknowledgement: bytes, handles: Sequence[str]) -> bytes:
    params = parse(acknowledgement).params_object()
    honoured = decode_object(params.get("notifications", msgspec.Raw(b"{}")), "notifications")
    honoured = honoured | {"taskIds": msgspec.Raw(encode(handles))}
    return encode_notification(ACKNOWLEDGED, splice(encode(params | {"notifications": msgspec.Raw(encode(honoured))})))


def task_notification(task: Object, handle: str, client_id: int | str) -> bytes:
    """Return a `notifications/tasks` for a client. `task` is the whole task, `handle` its id for the client, and
    `client_id` the request id of the client's `subscriptions/listen`."""
    meta = meta_of(task) | {SUBSCRIPTION_ID: msgspec.Raw(encode(client_id))}
    params = task | {"taskId": msgspec.Raw(encode(handle)), "_meta": msgspec.Raw(encode(meta))}
    return encode_notification("notifications/tasks", splice(encode(params)))


class TaskNotices:
    """Notifies streams about tasks, by reading the tasks' records in the store."""

    def __init__(self, made: MadeTasks, store: TaskStore, bus: Bus) -> None:
        self._made = made
        self._store = store
        self._bus = bus
        self._tasks = Tasks("notices of tasks")

    async def follow(self, stream: TaskStream, tasks: Mapping[str, TaskHandle], who: RequestContext) -> list[str]:
        """Notify a stream about `tasks` until the stream ends, beginning with the present state of each task. The keys
        of `tasks` are the handles as the client has sent them. Return the handles of the tasks that this client may
        see; the others are left out.

        Raises:
            Refused: 429, a session of these tasks gets too many requests.
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
            stream.when_done(following.cancel)
        return [text for texts in sessions.values() for text in texts.values()]


class _Following:
    """Notifies a stream about tasks of one session. `texts` has the handles of the tasks as the client knows them, by
    task id."""

    def __init__(self, stream: TaskStream, session_id: str, texts: Mapping[str, str]) -> None:
        self._stream = stream
        self._session_id = session_id
        self._texts = texts
        self._changed = set(texts)
        self._sent: dict[str, int] = {}  # versions, by id
        self._wake = asyncio.Event()

    async def run(self, store: TaskStore, bus: Bus) -> None:
        """Notify the stream until all tasks have ended or are deleted. If the store fails, try again later."""
        try:
            await self._run(store, bus)
        except Exception:
            logger.exception("a stream gets no more notifications of a session's tasks")
        self._stream.unfollowed()

    async def _run(self, store: TaskStore, bus: Bus) -> None:
        while self._texts:
            try:
                async with bus.subscribed(topic_of(self._session_id), self._receive):
                    # Changes before the subscription were missed: read all tasks.
                    self._changed |= self._texts.keys()
                    while self._texts:
                        self._wake.clear()
                        await self._read(store)
                        await self._wake.wait()
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)

    def _receive(self, data: bytes | None) -> None:
        """Handle a message of the bus: `data` is the id of a task that has changed. If it is None, messages may have
        been lost, so treat every task as changed."""
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
                text = self._texts[task_id]
                self._stream.emit(task_notification(task_object(task, text), text, self._stream.client_id))
                if task.is_over:
                    self._forget(task_id)

    def _forget(self, task_id: str) -> None:
        self._texts = {known: text for known, text in self._texts.items() if known != task_id}
        if not self._texts:
            self._wake.set()
