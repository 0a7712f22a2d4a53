"""The tasks of servers that pass through this replica, under the ids that clients and servers know."""

from collections.abc import Callable

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.owned_tasks import TaskLink, related_id, task_link_of, with_related
from gateway.protocol.tasks import TaskState, state_of, with_tasks
from gateway.tasks.handles import TaskHandle, TaskHandles
from gateway.tasks.known_tasks import KnownTasks
from gateway.tasks.refusals import tasks_not_declared, unreadable_task
from transports.jsonrpc import Object, decode_object, encode

__all__ = ["RelayedTasks"]


class RelayedTasks:
    """Gives the tasks of servers their handles."""

    def __init__(self, handles: TaskHandles) -> None:
        self.known = KnownTasks()
        self._handles = handles

    # -- a task that a server has made

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """The result of a call that a modern server has made a task of, with the handle for the client.

        Raises:
            Refused: the client cannot have a task for this call, or the task has no usable id. The task is cancelled.
        """
        link = task_link_of(exchange)
        assert link is not None
        own_id = _text(result, "taskId")
        cancellation = self._cancellation(exchange, own_id)
        if not is_declared or exchange.method != "tools/call":
            if own_id:
                link.request("tasks/cancel", cancellation)
            raise tasks_not_declared(f"Server {link.name!r} has made a task of this call")
        return result | {
            "taskId": msgspec.Raw(encode(self._named(exchange, result, endpoint, state_of(result), cancellation)))
        }

    def created_legacy(self, exchange: Exchange, result: Object, endpoint: str) -> Object:
        """As `created`, for the task that a legacy server has made of a call that has asked for a task (MCP 2025-11-25,
        Tasks). A server without tasks has answered as always."""
        if "task" not in result:
            return result
        task = decode_object(result["task"], "task")
        cancellation = encode({"taskId": _text(task, "taskId")})
        text = self._named(exchange, task, endpoint, state_of(task, "ttl"), cancellation)
        result = result | {"task": msgspec.Raw(encode(task | {"taskId": msgspec.Raw(encode(text))}))}
        return with_related(result, text) if related_id(result) else result

    def _named(
        self, exchange: Exchange, task: Object, endpoint: str, state: TaskState | None, cancellation: bytes
    ) -> str:
        """The handle of a task that the server of that exchange has just made. `cancellation`: the params that cancel
        it, if it cannot have a handle."""
        live, link = live_session_of(exchange), task_link_of(exchange)
        assert live is not None and link is not None
        handle = TaskHandle("relayed", live.session.id, endpoint, link.name, _text(task, "taskId"))
        try:
            text = self._handles.sign(handle)
        except ValueError:
            if handle.id:  # nobody can name it to cancel it
                link.request("tasks/cancel", cancellation)
            raise unreadable_task(link.name) from None
        self.known.note(live, link, handle, text, state, is_new=True)
        return text

    @staticmethod
    def _cancellation(exchange: Exchange, own_id: str) -> bytes:
        meta: Object = {} if exchange.caller is None else exchange.caller.meta("")
        return encode({"taskId": own_id, "_meta": with_tasks(meta)})

    # -- requests about a task

    def answer_shape(self, handle: TaskHandle, text: str) -> Callable[[Exchange, Object], Object]:
        """What turns the server's answer about a task into the client's: `text` is the handle that the client has."""
        own = msgspec.Raw(encode(text))

        def shaped(exchange: Exchange, result: Object) -> Object:
            if "taskId" not in result:
                return result  # an acknowledgement
            self.note(exchange, handle, text, result)
            return result | {"taskId": own}

        return shaped

    def note(self, exchange: Exchange, handle: TaskHandle, text: str, task: Object, ttl: str = "ttlMs") -> None:
        """Record the state of a task, as a message of its server for that exchange says it. `ttl`: see `state_of`."""
        live, link = live_session_of(exchange), task_link_of(exchange)
        if live is not None and link is not None:
            self.known.note(live, link, handle, text, state_of(task, ttl))

    def text_of(self, live: LiveSession, link: TaskLink, endpoint: str, own_id: str, *, is_own: bool) -> str | None:
        """The handle of a task that a server lists; None if the session must not see the task. `is_own`: whatever that
        server lists is the session's own."""
        handle = TaskHandle("relayed", live.session.id, endpoint, link.name, own_id)
        owned = self.known.owned(live, handle)
        if owned is not None:
            return owned.handle
        try:
            return self._handles.sign(handle) if is_own else None
        except ValueError:
            return None


def _text(result: Object, key: str) -> str:
    found = msgspec.json.decode(result.get(key, b"null"))
    return found if isinstance(found, str) else ""
