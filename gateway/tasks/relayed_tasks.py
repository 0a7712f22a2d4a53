"""Relay tasks that servers create: give them ids for clients, and keep their sessions and links alive.

A task keeps its session and the link (connection) to its server alive until it has ended or its time to live has
passed. The gateway knows a task's state only from the messages that it forwards. So a task without messages counts as
alive until its time to live has passed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from gateway.calls.client_request import IncomingCall, id_of, message_of
from gateway.calls.conversation import Conversation, conversation_of
from gateway.calls.exchange import Exchange
from gateway.calls.lifecycles import step
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.open_call_counts import Use
from gateway.calls.server_task_owners import OwnedTask, related_id, with_related
from gateway.context.session_facts import with_trace
from gateway.identity.request_context import RequestContext
from gateway.protocol.client_capabilities import declaration_in_meta
from gateway.protocol.tasks import TaskState, own_id, state_of, with_tasks
from gateway.sessions.session_attaching import Resolved
from gateway.tasks.errors import UnknownTask, tasks_not_declared, unreadable_task
from gateway.tasks.relay_interfaces import CallIntake, TaskServers
from gateway.tasks.task_handles import TaskHandle, TaskHandles
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store.session import redact
from transports.era import Era
from transports.inbound_port import Answer, Request
from transports.jsonrpc import Object, decode_object, encode

logger = logging.getLogger(__name__)

Shape = Callable[[Exchange, Object], Object]
"""A function that translates a server's result for the client."""

MAX_KEPT: Final = 64
"""Maximum number of tasks that keep one session alive. Beyond it, the oldest are still known, but keep nothing
alive."""

MAX_KNOWN: Final = 256
"""Maximum number of known tasks of one session. Beyond it, the oldest is forgotten."""

_MOST_S: Final = 86_400.0
"""Maximum seconds that a task keeps its session alive, even without a time to live: the default lifetime of a
session."""


class KnownState(StrEnum):
    """The state of a server's task on this replica."""

    FOUND = "found"
    """The task can be found by its handle, but keeps nothing alive: it has ended, or the limit is reached."""
    KEPT = "kept"
    """The task is working, and keeps its session and its link (connection to the server) alive."""
    FORGOTTEN = "forgotten"


class KnownEvent(StrEnum):
    """An event of a server's task on this replica."""

    KEEP = "keep"
    """The server has reported that the task is working."""
    RELEASE = "release"
    """The task has ended, or a newer one is kept in its place."""
    FORGET = "forget"
    """Its time to live has passed, its session or link is gone, or too many other tasks are known."""


_S, _E = KnownState, KnownEvent

KNOWN: Final[Mapping[KnownState, Mapping[KnownEvent, KnownState]]] = {
    _S.FOUND: {_E.KEEP: _S.KEPT, _E.RELEASE: _S.FOUND, _E.FORGET: _S.FORGOTTEN},
    _S.KEPT: {_E.KEEP: _S.KEPT, _E.RELEASE: _S.FOUND, _E.FORGET: _S.FORGOTTEN},
    _S.FORGOTTEN: {},
}


class _KnownTask:
    """A server's task in one session, as this replica knows it. `own_id` is the server's id of the task. In the state
    `KEPT`, the task keeps its session and link alive."""

    __slots__ = ("_live", "_own_id", "_timer", "_use", "link", "owned", "since", "state")

    def __init__(self, live: LiveSession, link: Conversation, own_id: str, owned: OwnedTask, since: float) -> None:
        self.state = KnownState.FOUND
        self.link = link
        self.owned = owned
        self.since = since
        self._live = live
        self._own_id = own_id
        self._timer: asyncio.TimerHandle | None = None
        self._use: Use | None = None

    @property
    def is_of_link(self) -> bool:
        """Return True if the server still knows this task by its id, because the link over which it was created is
        open."""
        tasks = self.link.known_tasks
        return tasks is not None and tasks.get(self._own_id) is self.owned

    def step(self, event: KnownEvent) -> None:
        """Change the state by the table `KNOWN`. When the state becomes `KEPT`, begin to keep the session and the link
        alive; stop when it is `KEPT` no more."""
        before, self.state = self.state, step(KNOWN, self.state, event)
        if self.state is KnownState.KEPT and before is not KnownState.KEPT:
            self._use = self._live.open_use(is_movable=not self.link.is_process)
            self.link.hold_link()
        elif self._use is not None and self.state is not KnownState.KEPT:
            use, self._use = self._use, None
            self.link.free_link()
            use.release()
        if self.state is KnownState.FORGOTTEN:
            if self._timer is not None:
                self._timer.cancel()
            if (tasks := self.link.known_tasks) is not None:
                tasks.discard(self._own_id, self.owned.handle)

    def forget_at(self, timer: asyncio.TimerHandle) -> None:
        """Set the timer after which the task is forgotten, and cancel the earlier timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


class KnownTasks:
    """Stores the known tasks of servers, by session and handle."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[LiveSession, dict[TaskHandle, _KnownTask]] = WeakKeyDictionary()

    def owned(self, live: LiveSession, handle: TaskHandle) -> OwnedTask | None:
        """Return the task of this session with this handle; None if this replica does not know the task."""
        known = self._known.get(live, {}).get(handle)
        return None if known is None else known.owned

    def is_reachable(self, upstream: ConfiguredUpstream, live: LiveSession, handle: TaskHandle) -> bool:
        """Return True if requests about the task may be sent to its server. A shared server that was restarted may give
        the task's id to a task of another session. So a shared server gets such requests only if this replica knows the
        task, in this session and over the present link."""
        if not upstream.settings.shared:
            return True
        known = self._known.get(live, {}).get(handle)
        return known is not None and known.is_of_link

    def note(
        self,
        live: LiveSession,
        link: Conversation,
        handle: TaskHandle,
        text: str,
        state: TaskState | None,
        *,
        is_new: bool = False,
    ) -> None:
        """Record `state`, the state of a task in a message of its server over `link`. `text` is the client's handle,
        whose contents are `handle`. Do nothing if `state` is None, because it was unreadable. `is_new`: the server has
        just created the task."""
        if state is None or live.ended:
            return
        tasks = self._known.setdefault(live, {})
        known = tasks.get(handle)
        if known is not None and not (known.link is link and known.is_of_link):
            self._forget(live, handle)
            known = None
        if known is None:
            if state.is_over and not is_new:
                return  # the server will send nothing more about it
            known = self._add(live, link, handle, text)
        if state.is_over:
            known.step(KnownEvent.RELEASE)
        else:
            self._make_room(live, known)
            known.step(KnownEvent.KEEP)
        ttl_s = _MOST_S if state.ttl_s is None else min(state.ttl_s, _MOST_S)
        loop = asyncio.get_running_loop()
        known.forget_at(loop.call_at(known.since + ttl_s, self._forget, live, handle))

    def _add(self, live: LiveSession, link: Conversation, handle: TaskHandle, text: str) -> _KnownTask:
        tasks = self._known[live]
        if len(tasks) >= MAX_KNOWN:
            self._forget(live, next(iter(tasks)))
        owned = OwnedTask(
            live,
            text,
            seen=lambda task: self.note(live, link, handle, text, state_of(task, "ttl")),
            lost=lambda: self._forget(live, handle),
        )
        known = tasks[handle] = _KnownTask(live, link, handle.id, owned, asyncio.get_running_loop().time())
        link.own_task(handle.id, owned)
        return known

    def _make_room(self, live: LiveSession, known: _KnownTask) -> None:
        kept = [each for each in self._known[live].values() if each.state is KnownState.KEPT]
        if len(kept) >= MAX_KEPT and known.state is not KnownState.KEPT:
            logger.info("a session has more than %d tasks", MAX_KEPT, extra={"session": redact(live.session.id)})
            kept[0].step(KnownEvent.RELEASE)

    def release(self, live: LiveSession, handle: TaskHandle) -> None:
        """Let a task no longer keep its session and link alive, because its client has got the result. The task can
        still be found."""
        known = self._known.get(live, {}).get(handle)
        if known is not None:
            known.step(KnownEvent.RELEASE)

    def _forget(self, live: LiveSession, handle: TaskHandle) -> None:
        known = self._known.get(live, {}).pop(handle, None)
        if known is not None:
            known.step(KnownEvent.FORGET)

    def forget(self, live: LiveSession) -> None:
        """Forget all tasks of a session that is closed on this replica."""
        for known in self._known.pop(live, {}).values():
            known.step(KnownEvent.FORGET)


class RelayedTasks:
    """Gives handles to the tasks of servers, and sends clients' requests about these tasks to the servers."""

    def __init__(
        self, handles: TaskHandles, calls: CallIntake, endpoints: Mapping[str, TaskServers], *, result_meta: bool
    ) -> None:
        self.known = KnownTasks()
        self.handles = handles
        self._calls = calls
        self._endpoints = endpoints
        self._result_meta = result_meta

    # -- a task that a server has made

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """Return a modern server's `CreateTaskResult` with the client's handle as the task's id.

        Raises:
            Refused: the client cannot have a task for this call, or the task has no usable id. The task is cancelled.
        """
        link = conversation_of(exchange)
        task_id = own_id(result)
        meta: Object = {} if exchange.declaration is None else exchange.declaration.meta("")
        cancellation = encode({"taskId": task_id, "_meta": with_tasks(meta)})
        if not is_declared or exchange.method != "tools/call":
            if task_id:
                link.request("tasks/cancel", cancellation)
            raise tasks_not_declared(f"Server {link.name!r} has made a task of this call")
        return result | {
            "taskId": msgspec.Raw(encode(self._named(exchange, result, endpoint, state_of(result), cancellation)))
        }

    def created_legacy(self, exchange: Exchange, result: Object, endpoint: str) -> Object:
        """Return a legacy server's result. If it describes a new task (MCP 2025-11-25, Tasks), put the client's handle
        in the place of the task's id. Raises `Refused`: the task has no usable id."""
        if "task" not in result:
            return result
        task = decode_object(result["task"], "task")
        cancellation = encode({"taskId": own_id(task)})
        text = self._named(exchange, task, endpoint, state_of(task, "ttl"), cancellation)
        result = result | {"task": msgspec.Raw(encode(task | {"taskId": msgspec.Raw(encode(text))}))}
        return with_related(result, text) if related_id(result) else result

    def _named(
        self, exchange: Exchange, task: Object, endpoint: str, state: TaskState | None, cancellation: bytes
    ) -> str:
        """Record a task that the exchange's server has just created, and return its handle for the client. If the
        task's id is unusable, cancel the task at the server and raise `Refused`. `cancellation` has the params for that
        `tasks/cancel`."""
        live, link = live_session_of(exchange), conversation_of(exchange)
        assert live is not None
        handle = TaskHandle("relayed", live.session.id, endpoint, link.name, own_id(task))
        try:
            text = self.handles.sign(handle)
        except ValueError:
            if handle.id:  # without a handle, no client can cancel it
                link.request("tasks/cancel", cancellation)
            raise unreadable_task(link.name) from None
        self.known.note(live, link, handle, text, state, is_new=True)
        return text

    # -- requests about a task

    async def ask(
        self, request: Request, who: RequestContext, resolved: Resolved, handle: TaskHandle, text: str, shape: Shape
    ) -> Answer:
        """Send a request about a task to the server that has created it, in the session of the task. `text` is the
        handle that the client has sent. `shape` translates the server's result for the client.

        Raises:
            Refused: the task is unknown or cannot be reached, or the request is refused by `CallIntake.accept`.
        """
        message, live = message_of(request), resolved.live
        upstream = self._endpoints[request.endpoint].server(handle.server, resolved.context)
        if upstream is None or not self.known.is_reachable(upstream, live, handle):
            raise UnknownTask()
        declaration = None
        if request.era is Era.MODERN:
            live.client_sent(message)
            declaration = declaration_in_meta(request.params.get("_meta", b"{}"))
        exchange = Exchange(
            method=str(message.method),
            client_id=id_of(message),
            live=live,
            shape=shape,
            declaration=declaration,
            context=resolved.context,
            granted=who.claims,
        )
        exchange.add_log_facts(handle.log_facts)
        if self._result_meta:
            exchange.filter_result(lambda _, result: with_trace(result, live.session, who.correlation))
        owned = self.known.owned(live, handle) if message.method == "tasks/result" else None
        if owned is not None:
            owned.await_result(exchange)
        params: Object = request.params | {"taskId": msgspec.Raw(encode(handle.id))}
        return await self._calls.accept(IncomingCall(exchange, request, who, params), server=handle.server)

    def answer_shape(self, handle: TaskHandle, text: str) -> Shape:
        """Return a function that translates the server's answer to a request about the task, and records the task's
        state from it. `text` is the client's handle, which replaces the server's id."""
        own = msgspec.Raw(encode(text))

        def shaped(exchange: Exchange, result: Object) -> Object:
            if "taskId" not in result:
                return result  # an acknowledgement: it has no state
            self.note(exchange, handle, text, result)
            return result | {"taskId": own}

        return shaped

    def note(self, exchange: Exchange, handle: TaskHandle, text: str, task: Object, ttl: str = "ttlMs") -> None:
        """Record the state of a task from `task`, a message of its server. `text` is the client's handle. `ttl` is the
        key of the task's time to live in the message."""
        if (live := live_session_of(exchange)) is not None:
            self.known.note(live, conversation_of(exchange), handle, text, state_of(task, ttl))

    def handle_for(
        self, live: LiveSession, link: Conversation, endpoint: str, own_id: str, *, is_own: bool
    ) -> str | None:
        """Return the client's handle of a task in a server's list; None if the session must not see the task, or if
        no handle can be made of `own_id`, which is the server's id of the task. `is_own`: all tasks in the list are
        this session's, so that a task unknown to this replica gets a handle, too."""
        handle = TaskHandle("relayed", live.session.id, endpoint, link.name, own_id)
        owned = self.known.owned(live, handle)
        if owned is not None:
            return owned.handle
        try:
            return self.handles.sign(handle) if is_own else None
        except ValueError:
            return None
