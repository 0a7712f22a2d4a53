"""The subscriptions at servers for one client's stream of tasks (ext-tasks, Task Status Notifications)."""

import asyncio
import logging
from typing import Final

import msgspec

from gateway.bridge.subscription_relay import RelayedReplies
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.subscription_filter import ACKNOWLEDGED
from gateway.protocol.tasks import with_tasks
from gateway.tasks.handles import TaskHandle
from gateway.tasks.listening import TaskStream, task_notification
from gateway.tasks.relayed import RelayedTasks
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import StoreUnavailable
from transports.era import Era
from transports.jsonrpc import Object, decode_object, encode, parse
from transports.reply_queue import Frame
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["Named", "TaskSubscriptions"]

logger = logging.getLogger(__name__)

_ACKNOWLEDGED_S: Final = 2.0
"""How long the acknowledgement waits for servers. Tasks of later ones are left out."""

_UNFOLLOWED: Final = (UpstreamUnavailable, HandshakeRefused, LinkClosed, StoreUnavailable)

Named = dict[str, tuple[TaskHandle, str]]
"""The tasks at one server: by the server's own id, the task and the text of its handle."""


class TaskSubscriptions:
    """The subscriptions at servers for one stream. They end with it."""

    def __init__(self, stream: TaskStream, relayed: RelayedTasks) -> None:
        self._stream = stream
        self._relayed = relayed
        self._open: list[Exchange] = []
        self._notifying: set[Exchange] = set()
        self._is_ended = False

    async def join(self, live: LiveSession, upstream: ConfiguredUpstream, tasks: Named, correlation: str) -> list[str]:
        """Subscribe to tasks of one session at one server. Returns the handles of those that it will notify of."""
        honoured: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        def receive(frame: Frame) -> None:
            if frame.final:
                self._ended(part)
                if not honoured.done():
                    honoured.set_result([])
                return
            message = parse(frame.data)
            params = message.params_object()
            if message.method == ACKNOWLEDGED:
                if not honoured.done():
                    honoured.set_result(self._accepted(part, tasks, params))
            elif (found := tasks.get(_own_id(params))) is not None:
                self._relayed.note(part, *found, params)
                self._stream.emit(task_notification(params, found[1], self._stream.client_id))

        caller, client = self._stream.caller, self._stream.replies
        assert caller is not None
        replies = RelayedReplies(receive, client)
        part = Exchange(method=self._stream.method, client_id=self._stream.client_id, live=live, replies=replies)
        try:
            if await upstream.era_for(Era.MODERN) is not Era.MODERN:
                return []
            conversation = upstream.conversation(live, Era.MODERN, correlation)
            params: Object = {"notifications": msgspec.Raw(encode({"taskIds": sorted(tasks)}))}
            self._open.append(part)
            await conversation.start(part, params, with_tasks(caller.meta("")))
            async with asyncio.timeout(_ACKNOWLEDGED_S):
                return await honoured
        except _UNFOLLOWED as error:
            logger.warning("tasks of server %s are not notified of: %s", upstream.name, error)
        except TimeoutError:
            logger.info("server %s has not acknowledged a subscription to tasks in time", upstream.name)
            _cancel(part)
        self._ended(part)
        return []

    def _accepted(self, part: Exchange, tasks: Named, params: Object) -> list[str]:
        """The handles of the tasks that a server will notify of, as it acknowledges them."""
        handles = [tasks[own][1] for own in _honoured(params) if own in tasks]
        if handles and part not in self._notifying:
            self._notifying.add(part)
            self._stream.followed()
        return handles

    def _ended(self, part: Exchange) -> None:
        """A server notifies no more, or never has."""
        if part in self._open:
            self._open.remove(part)
        if part in self._notifying and not self._is_ended:
            self._notifying.discard(part)
            self._stream.unfollowed()

    def end(self) -> None:
        """The client's stream is over."""
        self._is_ended = True
        for part in tuple(self._open):
            _cancel(part)


def _cancel(part: Exchange) -> None:
    part.cancel("the client closed the stream")


def _own_id(params: Object) -> str:
    found = msgspec.json.decode(params.get("taskId", b"null"))
    return found if isinstance(found, str) else ""


def _honoured(params: Object) -> list[str]:
    """The server's own ids in its acknowledgement."""
    accepted = decode_object(params.get("notifications", msgspec.Raw(b"{}")), "notifications")
    return msgspec.json.decode(accepted.get("taskIds", b"[]"), type=list[str])
