"""Serve the `subscriptions/listen` of modern clients with `taskIds`: subscribe to the tasks at their servers.

Each server notifies of its own tasks, in the session in which it has created them. If the task's session is not on this
replica, or its server sends no notifications, the task is left out of the acknowledgement, and clients poll it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.bridge.modern_server_subscriptions import RelayedReplies
from gateway.calls.client_request import IncomingCall, id_of, message_of
from gateway.calls.exchange import Exchange
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import LiveSession
from gateway.context.session_facts import with_meta
from gateway.identity.request_context import RequestContext
from gateway.protocol.client_capabilities import declaration_in_meta
from gateway.protocol.subscription_filter import ACKNOWLEDGED, SUBSCRIPTION_ID
from gateway.protocol.tasks import declares_tasks, own_id, with_tasks
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from gateway.tasks.errors import UnknownTask, tasks_not_declared
from gateway.tasks.gateway_tasks.task_requests import found_session
from gateway.tasks.notifications import TaskNotices, TaskStream, task_notification
from gateway.tasks.relay_interfaces import CallIntake, TaskServers
from gateway.tasks.relayed_tasks import RelayedTasks
from gateway.tasks.task_handles import TaskHandle
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import StoreUnavailable
from transports.era import Era
from transports.inbound_port import Answer, OwnedByPeer, Refused, Request
from transports.jsonrpc import INVALID_PARAMS, Object, decode_object, encode, parse
from transports.reply_queue import Frame

logger = logging.getLogger(__name__)

_ACKNOWLEDGED_S: Final = 2.0
"""Seconds that the acknowledgement waits for servers. It leaves out the tasks of slower servers."""

_STREAM_CLOSED: Final = "the client closed the stream"

Named = dict[str, tuple[TaskHandle, str]]
"""Tasks at one server, by the server's own id. Each value is the decoded handle and its text."""

MAX_LISTENED: Final = 64
"""Maximum number of tasks about which one stream sends notifications."""


class TaskSubscriptions:
    """Subscribes to tasks at their servers for one `subscriptions/listen` stream of a client, until the stream ends."""

    def __init__(self, stream: TaskStream, relayed: RelayedTasks) -> None:
        self._stream = stream
        self._relayed = relayed
        self._open: list[Exchange] = []
        self._notifying: set[Exchange] = set()
        self._is_ended = False

    async def join(self, live: LiveSession, upstream: ConfiguredUpstream, tasks: Named, correlation: str) -> list[str]:
        """Subscribe to tasks of one session at one server. Return the handles of the tasks that the server acknowledges
        in time."""
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
            elif (found := tasks.get(own_id(params))) is not None:
                self._relayed.note(part, *found, params)
                self._stream.emit(task_notification(params, found[1], self._stream.client_id))

        declaration, client = self._stream.declaration, self._stream.replies
        assert declaration is not None
        replies = RelayedReplies(receive, client)
        part = Exchange(method=self._stream.method, client_id=self._stream.client_id, live=live, replies=replies)
        try:
            if await upstream.era_for(Era.MODERN) is not Era.MODERN:
                return []
            conversation = upstream.conversation(live, Era.MODERN, correlation)
            params: Object = {"notifications": msgspec.Raw(encode({"taskIds": sorted(tasks)}))}
            self._open.append(part)
            await conversation.start(part, params, with_tasks(declaration.meta("")))
            async with asyncio.timeout(_ACKNOWLEDGED_S):
                return await honoured
        except (*UNREACHED, StoreUnavailable) as error:
            logger.warning("no notifications of tasks from server %s: %s", upstream.name, error)
        except TimeoutError:
            logger.info("server %s has not acknowledged a subscription to tasks in time", upstream.name)
            part.cancel(_STREAM_CLOSED)
        self._ended(part)
        return []

    def _accepted(self, part: Exchange, tasks: Named, params: Object) -> list[str]:
        """Return the handles of those of `tasks` that a server names in its acknowledgement (`params`). If there are
        any, count the server as a source of notifications on the stream. `part` is the subscription at the server."""
        accepted = decode_object(params.get("notifications", msgspec.Raw(b"{}")), "notifications")
        own_ids = msgspec.json.decode(accepted.get("taskIds", b"[]"), type=list[str])
        handles = [tasks[own][1] for own in own_ids if own in tasks]
        if handles and part not in self._notifying:
            self._notifying.add(part)
            self._stream.followed()
        return handles

    def _ended(self, part: Exchange) -> None:
        """Record that `part`, the subscription at one server, has ended or could not be opened."""
        if part in self._open:
            self._open.remove(part)
        if part in self._notifying and not self._is_ended:
            self._notifying.discard(part)
            self._stream.unfollowed()

    def end(self) -> None:
        """Cancel the subscriptions, because the client's stream has ended."""
        self._is_ended = True
        for part in tuple(self._open):
            part.cancel(_STREAM_CLOSED)


@dataclass(eq=False, repr=False, kw_only=True)
class TaskListening:
    """Serves the streams that notify modern clients of tasks."""

    relayed: RelayedTasks
    notices: TaskNotices
    intake: CallIntake
    resolver: SessionResolver
    endpoints: Mapping[str, TaskServers]

    async def call(self, request: Request, who: RequestContext) -> Answer:
        """Answer a `subscriptions/listen` that names tasks.

        Raises:
            Refused: the client does not declare the tasks extension, or `taskIds` is not an array of strings.
            OwnedByPeer: another replica owns the session of the client or of its tasks.
            StoreUnavailable: the store does not answer.
        """
        if not declares_tasks(request.meta):
            raise tasks_not_declared("params.notifications.taskIds asks for notifications of tasks")
        wanted = decode_object(request.params["notifications"], "notifications")
        tasks = self._named(wanted.pop("taskIds"), request.endpoint)
        resolved = await self._session(tasks, request, who)
        stream = TaskStream(
            method=str(message_of(request).method),
            client_id=id_of(message_of(request)),
            live=resolved.live,
            shape=lambda call, result: with_meta(result, {SUBSCRIPTION_ID: msgspec.Raw(encode(call.client_id))}),
            declaration=declaration_in_meta(request.params.get("_meta", b"{}")),
            context=resolved.context,
            granted=who.claims,
        )
        params = request.params | {"notifications": msgspec.Raw(encode(wanted))}
        answer = await self.intake.accept(IncomingCall(stream, request, who, params))
        try:
            subscriptions = TaskSubscriptions(stream, self.relayed)
            stream.when_done(subscriptions.end)
            if not wanted:
                stream.about_nothing_else()
            made = {text: handle for text, handle in tasks.items() if handle.kind == "made"}
            relayed = {text: handle for text, handle in tasks.items() if text not in made}
            accepted = await self._subscribe(subscriptions, relayed, request, who)
            accepted += await self.notices.follow(stream, made, who)
            stream.accept([text for text in tasks if text in accepted])
        except BaseException:
            answer.cancel("the client has left")
            answer.done()
            raise
        return answer

    def _named(self, raw: msgspec.Raw, endpoint: str) -> dict[str, TaskHandle]:
        """Return the decoded handles in `raw`, the `taskIds` of a request, by their texts. Leave out all after the
        first `MAX_LISTENED`, and those that are invalid or of another endpoint. Raises `Refused`: 400, `raw` is no
        array of strings."""
        try:
            texts = msgspec.json.decode(raw, type=list[str])
        except msgspec.MsgspecError:
            raise Refused(
                400, INVALID_PARAMS, "params.notifications.taskIds must be an array of ids of tasks"
            ) from None
        named: dict[str, TaskHandle] = {}
        for text in texts[:MAX_LISTENED]:
            with contextlib.suppress(UnknownTask):
                named[text] = self.relayed.handles.read_at(text, endpoint)
        return named

    async def _session(self, tasks: Mapping[str, TaskHandle], request: Request, who: RequestContext) -> Resolved:
        """Return the session for the stream: that of the request; else that of the first task whose session can be
        used; else a new session."""
        resolved = await self.resolver.resume(request, who)
        for handle in tasks.values() if resolved is None else ():
            if (resolved := await self._session_of(handle, who)) is not None:
                break
        if resolved is None:
            resolved = await self.resolver.resume_or_open(request, who)
        return resolved

    async def _session_of(self, handle: TaskHandle, who: RequestContext) -> Resolved | None:
        return await found_session(handle.session_id, who, self.resolver, Era.MODERN)

    async def _subscribe(
        self,
        subscriptions: TaskSubscriptions,
        tasks: Mapping[str, TaskHandle],
        request: Request,
        who: RequestContext,
    ) -> list[str]:
        """Subscribe to tasks at all their servers. Return the handles of the tasks of which the client will be
        notified."""
        places: dict[tuple[LiveSession, ConfiguredUpstream], Named] = {}
        for text, handle in tasks.items():
            try:
                resolved = await self._session_of(handle, who)
            except (OwnedByPeer, StoreUnavailable):
                continue
            upstream = None
            if resolved is not None:
                upstream = self.endpoints[request.endpoint].server(handle.server, resolved.context)
            if resolved is None or upstream is None:
                continue
            if self.relayed.known.is_reachable(upstream, resolved.live, handle):
                places.setdefault((resolved.live, upstream), {})[handle.id] = (handle, text)
        joined = await asyncio.gather(
            *(subscriptions.join(live, upstream, named, who.correlation) for (live, upstream), named in places.items())
        )
        accepted = set().union(*joined)
        return [text for text in tasks if text in accepted]
