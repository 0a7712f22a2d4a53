"""A client's stream of notifications that are also about tasks (ext-tasks, Task Status Notifications)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.protocol.params import meta_of
from gateway.protocol.subscription_filter import ACKNOWLEDGED, ENDED, SUBSCRIPTION_ID
from transports.jsonrpc import Message, Object, decode_object, encode, encode_notification, parse, splice

__all__ = ["TaskStream", "task_notification"]

_MAX_EARLY: Final = 256
"""Frames that may wait for the acknowledgement."""


class TaskStream(Exchange):
    """A `subscriptions/listen` that names tasks.

    Its first frame names the tasks that the client will be notified of, beside what the servers honour of the rest.
    Frames that come before both are known wait. A stream about nothing but tasks ends once nobody notifies of them any
    more.
    """

    _is_all_tasks = False
    _followers = 0  # servers and sessions that still notify of tasks
    _was_followed = False

    _acknowledgement: bytes | None = None  # of the servers
    _accepted: Sequence[str] | None = None  # the handles of the tasks
    _early: tuple[bytes, ...] = ()

    @property
    def is_acknowledged(self) -> bool:
        """Whether the client has the first frame."""
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
        """The client will be notified of these tasks."""
        self._accepted = handles
        self._begin()

    def followed(self) -> None:
        """A server, or the store, notifies of tasks from now on, until `unfollowed` is called."""
        self._followers += 1
        self._was_followed = True

    def unfollowed(self) -> None:
        """One of those notifies no more."""
        self._followers -= 1
        self._end_if_silent()

    def about_nothing_else(self) -> None:
        """The client wants no notifications but those of tasks."""
        self._is_all_tasks = True

    def _end_if_silent(self) -> None:
        if self._is_all_tasks and self._was_followed and not self._followers and self.is_acknowledged:
            self.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(ENDED)))

    def _begin(self) -> bool:
        """Send the first frame, and those that came before, once all is known. False if the client does not read."""
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
    """`notifications/tasks` for a client: `task` is the whole task, `handle` its id for the client, and `client_id` the
    id of the client's `subscriptions/listen`."""
    meta = meta_of(task) | {SUBSCRIPTION_ID: msgspec.Raw(encode(client_id))}
    params = task | {"taskId": msgspec.Raw(encode(handle)), "_meta": msgspec.Raw(encode(meta))}
    return encode_notification("notifications/tasks", splice(encode(params)))
