"""The tasks of servers that pass through this replica: under which ids, and what each keeps alive.

A task keeps its session, and the link to its server, until it is over or its time to live has passed. What is known of
it comes from the messages that pass: a task that nobody asks for stays until its time to live has passed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.owned_tasks import OwnedTask, TaskLink, related_id, task_link_of, with_related
from gateway.calls.usage import Use
from gateway.protocol.tasks import TaskState, state_of, with_tasks
from gateway.tasks.handles import TaskHandle, TaskHandles
from gateway.tasks.refusals import tasks_not_declared, unreadable_task
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store.session import redact
from transports.jsonrpc import Object, decode_object, encode

__all__ = ["MAX_KEPT", "MAX_KNOWN", "RelayedTasks"]

logger = logging.getLogger(__name__)

MAX_KEPT: Final = 64
"""Tasks of one session that keep it alive. Of more, the oldest ones are still found, but keep nothing alive."""

MAX_KNOWN: Final = 256
"""Tasks of one session that are known."""

_MOST_S: Final = 86_400.0
"""How long a task without a time to live keeps its session: as long as sessions live by default."""


class _Known:
    """One task, and what it keeps alive until it is over."""

    __slots__ = ("_use", "link", "owned", "since", "timer")

    def __init__(self, link: TaskLink, owned: OwnedTask, since: float) -> None:
        self.link = link
        self.owned = owned
        self.since = since
        self.timer: asyncio.TimerHandle | None = None
        self._use: Use | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it keeps its session and its link."""
        return self._use is not None

    def keep(self, live: LiveSession) -> None:
        if self._use is None:
            self._use = live.at_work() if self.link.is_process else live.in_use()
            self.link.hold_link()

    def let_go(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            self.link.free_link()
            use.release()

    def forget(self, own_id: str) -> None:
        self.let_go()
        if self.timer is not None:
            self.timer.cancel()
        tasks = self.link.known_tasks
        if tasks is not None:
            tasks.discard(own_id, self.owned.handle)


class RelayedTasks:
    """Gives the tasks of servers their handles, and keeps alive what they need."""

    def __init__(self, handles: TaskHandles) -> None:
        self._handles = handles
        self._known: WeakKeyDictionary[LiveSession, dict[TaskHandle, _Known]] = WeakKeyDictionary()

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
        self._note(live, link, handle, text, state, is_new=True)
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
            self._note(live, link, handle, text, state_of(task, ttl))

    # -- what is known of tasks, and what they keep alive

    def is_reachable(self, upstream: ConfiguredUpstream, live: LiveSession, handle: TaskHandle) -> bool:
        """Whether the task may be asked for at its server. A server that sessions share gives an id again once it was
        started anew, and then to any of them: there only a task is reached that was made in this session, by the
        process that the server has now."""
        if not upstream.settings.shared:
            return True
        known = self._known.get(live, {}).get(handle)
        return known is not None and _is_of(known.link, handle.id, known.owned)

    def owned(self, live: LiveSession, handle: TaskHandle) -> OwnedTask | None:
        """What is known of a task of that session."""
        known = self._known.get(live, {}).get(handle)
        return None if known is None else known.owned

    def text_of(self, live: LiveSession, link: TaskLink, endpoint: str, own_id: str, *, is_own: bool) -> str | None:
        """The handle of a task that a server lists; None if the session must not see the task. `is_own`: whatever that
        server lists is the session's own."""
        handle = TaskHandle("relayed", live.session.id, endpoint, link.name, own_id)
        owned = self.owned(live, handle)
        if owned is not None:
            return owned.handle
        try:
            return self._handles.sign(handle) if is_own else None
        except ValueError:
            return None

    def _note(
        self,
        live: LiveSession,
        link: TaskLink,
        handle: TaskHandle,
        text: str,
        state: TaskState | None,
        *,
        is_new: bool = False,
    ) -> None:
        if state is None or live.ended:
            return
        tasks = self._known.setdefault(live, {})
        known = tasks.get(handle)
        if known is not None and not (known.link is link and _is_of(link, handle.id, known.owned)):
            self._forget(live, handle)
            known = None
        loop = asyncio.get_running_loop()
        if known is None:
            if state.is_over and not is_new:
                return  # nothing more comes of it
            if len(tasks) >= MAX_KNOWN:
                self._forget(live, next(iter(tasks)))
            owned = OwnedTask(
                live,
                text,
                seen=lambda task: self._note(live, link, handle, text, state_of(task, "ttl")),
                lost=lambda: self._forget(live, handle),
            )
            known = tasks[handle] = _Known(link, owned, loop.time())
            link.own_task(handle.id, owned)
        if state.is_over:
            known.let_go()
        else:
            self._keep(live, tasks, known)
        if known.timer is not None:
            known.timer.cancel()
        ttl_s = _MOST_S if state.ttl_s is None else min(state.ttl_s, _MOST_S)
        known.timer = loop.call_at(known.since + ttl_s, self._forget, live, handle)

    def _keep(self, live: LiveSession, tasks: dict[TaskHandle, _Known], known: _Known) -> None:
        kept = [each for each in tasks.values() if each.is_kept]
        if len(kept) >= MAX_KEPT and not known.is_kept:
            logger.info("a session has more than %d tasks", MAX_KEPT, extra={"session": redact(live.session.id)})
            kept[0].let_go()
        known.keep(live)

    def over(self, live: LiveSession, handle: TaskHandle) -> None:
        """A task is over: its client has the result."""
        known = self._known.get(live, {}).get(handle)
        if known is not None:
            known.let_go()

    def _forget(self, live: LiveSession, handle: TaskHandle) -> None:
        known = self._known.get(live, {}).pop(handle, None)
        if known is not None:
            known.forget(handle.id)

    def forget(self, live: LiveSession) -> None:
        """The session is closed on this replica."""
        for handle, known in self._known.pop(live, {}).items():
            known.forget(handle.id)


def _is_of(link: TaskLink, own_id: str, owned: OwnedTask) -> bool:
    """Whether that is the task that the present link knows under this id."""
    tasks = link.known_tasks
    return tasks is not None and tasks.get(own_id) is owned


def _text(result: Object, key: str) -> str:
    found = msgspec.json.decode(result.get(key, b"null"))
    return found if isinstance(found, str) else ""
