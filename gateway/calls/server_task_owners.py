"""Find the session of a task that a server has created. The server's messages name a task only by its own id. No I/O.

In MCP 2025-11-25 both sides send messages about tasks, also outside of calls. A server that many sessions share sends
the messages about all their tasks over one link.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gateway.calls.exchange import Exchange, ExchangeSession
from gateway.protocol.params import meta_of
from transports.jsonrpc import Message, Object, encode

RELATED: Final = "io.modelcontextprotocol/related-task"
"""The key in `_meta` under which messages name their task (MCP 2025-11-25, Tasks)."""


class OwnedTask:
    """A task that a server has created, and the session to which it belongs."""

    __slots__ = ("handle", "live", "lost", "result_call", "seen")

    def __init__(
        self,
        live: ExchangeSession,
        handle: str,
        *,
        seen: Callable[[Object], None],
        lost: Callable[[], None],
    ) -> None:
        self.live = live
        self.handle = handle
        """The task id that the session's client uses. Empty if the client does not know the task, because the gateway
        waits for the task on behalf of a call."""
        self.result_call: Exchange | None = None
        """The client's `tasks/result` call in flight. None if there is none."""
        self.seen = seen
        """Called with each state of the task that the server sends."""
        self.lost = lost
        """Called when the link to the server is gone."""

    def await_result(self, call: Exchange) -> None:
        """Send the server's questions about the task to this call until the call ends. The call is a `tasks/result`,
        with which the client waits for the task's result."""
        self.result_call = call

        def no_more() -> None:
            if self.result_call is call:
                self.result_call = None

        call.when_done(no_more)

    def named(self, params: Object) -> Object:
        """Return the params of a message of the server for its client: they name the task by the client's handle, or
        name no task if the handle is empty."""
        return with_related(params, self.handle) if self.handle else without_related(params)

    @property
    def stream(self) -> Exchange | None:
        """Return the call on whose stream the client gets messages about the task; None: they go on the standalone
        stream."""
        call = self.result_call
        return None if call is None or call.is_over else call


class OwnedTasks:
    """The tasks that a server has created over one link, by the server's own ids."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[str, OwnedTask] = {}

    def __iter__(self) -> Iterator[OwnedTask]:
        return iter(tuple(self._tasks.values()))

    def add(self, own_id: str, task: OwnedTask) -> None:
        """Record a task. If another task has the same id, call the `lost` callback of that task, because the server
        must have dropped it."""
        earlier = self._tasks.get(own_id)
        self._tasks[own_id] = task
        if earlier is not None:
            earlier.lost()

    def get(self, own_id: str) -> OwnedTask | None:
        return self._tasks.get(own_id)

    def discard(self, own_id: str, handle: str) -> None:
        """Remove the task with this id, but only if it has this handle: the server may have given the id to another
        task meanwhile."""
        task = self._tasks.get(own_id)
        if task is not None and task.handle == handle:
            del self._tasks[own_id]

    def own_id(self, handle: str) -> str | None:
        """Return the server's own id of the task with this handle; None if there is none."""
        return next((own for own, task in self._tasks.items() if task.handle == handle), None)

    def answer_for_server(self, message: Message) -> Message:
        """Return the client's answer `message`, for the server. If the answer names a task, put the server's own task
        id in place of the client's handle."""
        if not isinstance(message.result, msgspec.Raw):
            return message
        try:
            result = msgspec.json.decode(message.result, type=Object)
            own = self.own_id(related_id(result))
        except (msgspec.MsgspecError, ValueError):
            return message
        if own is None:
            return message
        return Message(jsonrpc="2.0", id=message.id, result=msgspec.Raw(encode(with_related(result, own))))


def related_id(params: Object) -> str:
    """Return the task id in the `_meta` of params or of a result; empty if there is none."""
    meta = meta_of(params)
    if RELATED not in meta:
        return ""
    found = msgspec.json.decode(meta[RELATED])
    task_id = found.get("taskId") if isinstance(found, dict) else None
    return task_id if isinstance(task_id, str) else ""


def with_related(params: Object, task_id: str) -> Object:
    """Return params or a result, with `task_id` set as the task id in its `_meta`."""
    meta = meta_of(params)
    related = msgspec.json.decode(meta.get(RELATED, b"{}"), type=Object) | {"taskId": msgspec.Raw(encode(task_id))}
    return params | {"_meta": msgspec.Raw(encode(meta | {RELATED: msgspec.Raw(encode(related))}))}


def without_related(params: Object) -> Object:
    """Return params or a result, with the task id in its `_meta` removed."""
    meta = meta_of(params)
    if RELATED not in meta:
        return params
    rest = {key: value for key, value in params.items() if key != "_meta"}
    meta = {key: value for key, value in meta.items() if key != RELATED}
    return rest | {"_meta": msgspec.Raw(encode(meta))} if meta else rest
