"""A client's stream of notifications that are also about tasks (ext-tasks, Task Status Notifications)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.protocol.params import meta_of
from gateway.protocol.subscription_filter import ACKNOWLEDGED, SUBSCRIPTION_ID
from transports.jsonrpc import Object, decode_object, encode, encode_notification, parse, splice

__all__ = ["TaskStream", "task_notification"]

_MAX_EARLY: Final = 256
"""Frames that may wait for the acknowledgement."""


class TaskStream(Exchange):
    """A `subscriptions/listen` that names tasks.

    Its first frame names the tasks that the client will be notified of, beside what the servers honour of the rest.
    Frames that come before both are known wait. `is_acknowledged`: the client has the first frame.
    """

    _accepted: Sequence[str] | None = None
    is_acknowledged = False
    _early: tuple[bytes, ...] = ()

    def emit(self, frame: bytes) -> bool:
        if self.is_acknowledged:
            return super().emit(frame)
        if len(self._early) >= _MAX_EARLY:
            return False
        self._early = (*self._early, frame)
        return self._acknowledge()

    def accept(self, handles: Sequence[str]) -> None:
        """The client will be notified of these tasks."""
        self._accepted = handles
        self._acknowledge()

    def _acknowledge(self) -> bool:
        first = next((frame for frame in self._early if parse(frame).method == ACKNOWLEDGED), None)
        if first is None or self._accepted is None:
            return True
        self.is_acknowledged = True
        early, self._early = self._early, ()
        took = super().emit(_with_tasks(first, self._accepted))
        return all([took, *(super(TaskStream, self).emit(frame) for frame in early if frame is not first)])


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
