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

from gateway.calls.exchange import Exchange, ExchangeConversation
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.usage import Use
from gateway.protocol.tasks import TaskState, state_of, with_tasks
from gateway.tasks.handles import TaskHandle, TaskHandles
from gateway.tasks.refusals import tasks_not_declared, unreadable_task
from session_store.session import redact
from transports.jsonrpc import Object, encode

__all__ = ["MAX_KEPT", "RelayedTasks"]

logger = logging.getLogger(__name__)

MAX_KEPT: Final = 64
"""Tasks of one session that keep it alive. Of more, the oldest ones are still found, but keep nothing alive."""

_MOST_S: Final = 86_400.0
"""How long a task without a time to live keeps its session: as long as sessions live by default."""


class _Kept:
    """One task, and what it keeps alive."""

    __slots__ = ("conversation", "since", "timer", "use")

    def __init__(self, use: Use, conversation: ExchangeConversation, since: float) -> None:
        self.use = use
        self.conversation = conversation
        self.since = since
        self.timer: asyncio.TimerHandle | None = None
        conversation.hold_link()

    def let_go(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.conversation.free_link()
        self.use.release()


class RelayedTasks:
    """Gives the tasks of servers their handles, and keeps alive what they need."""

    def __init__(self, handles: TaskHandles) -> None:
        self._handles = handles
        self._kept: WeakKeyDictionary[LiveSession, dict[TaskHandle, _Kept]] = WeakKeyDictionary()

    # -- a task that a server has made

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """The result of a call that a modern server has made a task of, with the handle for the client.

        Raises:
            Refused: the client cannot have a task for this call, or the task has no usable id. The task is cancelled.
        """
        live, conversation = live_session_of(exchange), exchange.conversation
        assert live is not None and conversation is not None
        own_id = _text(result, "taskId")
        if not is_declared or exchange.method != "tools/call":
            if own_id:
                conversation.request("tasks/cancel", self._cancellation(exchange, own_id))
            raise tasks_not_declared(f"Server {conversation.name!r} has made a task of this call")
        try:
            handle = TaskHandle("relayed", live.session.id, endpoint, conversation.name, own_id)
            text = self._handles.sign(handle)
        except ValueError:
            raise unreadable_task(conversation.name) from None
        self._note(live, handle, conversation, state_of(result))
        return result | {"taskId": msgspec.Raw(encode(text))}

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
            self.note(exchange, handle, result)
            return result | {"taskId": own}

        return shaped

    def note(self, exchange: Exchange, handle: TaskHandle, task: Object, ttl: str = "ttlMs") -> None:
        """Record the state of a task, as a message of its server for that exchange says it. `ttl`: see `state_of`."""
        live, conversation = live_session_of(exchange), exchange.conversation
        if live is not None and conversation is not None:
            self._note(live, handle, conversation, state_of(task, ttl))

    # -- what tasks keep alive

    def _note(
        self, live: LiveSession, handle: TaskHandle, conversation: ExchangeConversation, state: TaskState | None
    ) -> None:
        if state is None or live.ended:
            return
        if state.is_over:
            self._let_go(live, handle)
            return
        loop = asyncio.get_running_loop()
        tasks = self._kept.setdefault(live, {})
        kept = tasks.get(handle)
        if kept is not None and kept.conversation is not conversation:
            self._let_go(live, handle)
            kept = None
        if kept is None:
            if len(tasks) >= MAX_KEPT:
                logger.info("a session has more than %d tasks", MAX_KEPT, extra={"session": redact(live.session.id)})
                self._let_go(live, next(iter(tasks)))
            use = live.at_work() if conversation.is_process else live.in_use()
            kept = tasks[handle] = _Kept(use, conversation, loop.time())
        if kept.timer is not None:
            kept.timer.cancel()
        ttl_s = _MOST_S if state.ttl_s is None else min(state.ttl_s, _MOST_S)
        kept.timer = loop.call_at(kept.since + ttl_s, self._let_go, live, handle)

    def _let_go(self, live: LiveSession, handle: TaskHandle) -> None:
        kept = self._kept.get(live, {}).pop(handle, None)
        if kept is not None:
            kept.let_go()

    def forget(self, live: LiveSession) -> None:
        """The session is closed on this replica."""
        for kept in self._kept.pop(live, {}).values():
            kept.let_go()


def _text(result: Object, key: str) -> str:
    found = msgspec.json.decode(result.get(key, b"null"))
    return found if isinstance(found, str) else ""
