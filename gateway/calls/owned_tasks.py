"""Find the session that a task of a server belongs to. A server's messages name its tasks only by its own ids. No I/O.

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
    """One task: its session, and the handle by which the session's client knows it. The handle is empty if the client
    does not know of the task, because the gateway follows the task for its call.

    `result_call` is the client's `tasks/result` that waits for the task. `seen` gets the task whenever the server sends
    it. `lost` is called when the link is gone.
    """

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
        self.result_call: Exchange | None = None
        self.seen = seen
        self.lost = lost

    def await_result(self, call: Exchange) -> None:
        """Send the server's questions from now on to this call, with which the client waits for the result."""
        self.result_call = call

        def no_more() -> None:
            if self.result_call is call:
                self.result_call = None

        call.when_done(no_more)

    def named(self, params: Object) -> Object:
        """Return params that name the task by its handle; without the name if the client does not know the task."""
        return with_related(params, self.handle) if self.handle else without_related(params)

    @property
    def stream(self) -> Exchange | None:
        """Return the call on whose stream messages about the task reach the client; None: the session's own stream."""
        call = self.result_call
        return None if call is None or call.is_over else call


class OwnedTasks:
    """The tasks of one link, by the server's own ids."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[str, OwnedTask] = {}

    def __iter__(self) -> Iterator[OwnedTask]:
        return iter(tuple(self._tasks.values()))

    def add(self, own_id: str, task: OwnedTask) -> None:
        """Record a task. A task of another session with the same id is lost: its server has forgotten it."""
        earlier = self._tasks.get(own_id)
        self._tasks[own_id] = task
        if earlier is not None:
            earlier.lost()

    def get(self, own_id: str) -> OwnedTask | None:
        return self._tasks.get(own_id)

    def discard(self, own_id: str, handle: str) -> None:
        """Forget the task with that id, if it still has that handle: the id may be another task's by now."""
        task = self._tasks.get(own_id)
        if task is not None and task.handle == handle:
            del self._tasks[own_id]

    def own_id(self, handle: str) -> str | None:
        """Return the server's own id of the task with that handle; None if there is none."""
        return next((own for own, task in self._tasks.items() if task.handle == handle), None)

    def answer_for_server(self, message: Message) -> Message:
        """Replace the handle by the server's own id in a client's answer to a question about a task."""
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
    """Return the id of the task that params or a result belong to; empty if there is none."""
    meta = meta_of(params)
    if RELATED not in meta:
        return ""
    found = msgspec.json.decode(meta[RELATED])
    task_id = found.get("taskId") if isinstance(found, dict) else None
    return task_id if isinstance(task_id, str) else ""


def with_related(params: Object, task_id: str) -> Object:
    """Return params or a result with the task of that id named in `_meta`."""
    meta = meta_of(params)
    related = msgspec.json.decode(meta.get(RELATED, b"{}"), type=Object) | {"taskId": msgspec.Raw(encode(task_id))}
    return params | {"_meta": msgspec.Raw(encode(meta | {RELATED: msgspec.Raw(encode(related))}))}


def without_related(params: Object) -> Object:
    """Return params or a result without a task in `_meta`."""
    meta = meta_of(params)
    if RELATED not in meta:
        return params
    rest = {key: value for key, value in params.items() if key != "_meta"}
    meta = {key: value for key, value in meta.items() if key != RELATED}
    return rest | {"_meta": msgspec.Raw(encode(meta))} if meta else rest
