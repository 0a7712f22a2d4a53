"""Handle the tasks of legacy clients (MCP 2025-11-25, Tasks): calls with `params.task`, and requests about tasks.

Messages about a server's task are forwarded with one change: the server's task id is replaced by the gateway's handle.
Tasks that the gateway creates are in `gateway.tasks.requested_tasks`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.calls.client_request import IncomingCall, message_of
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.server_task_owners import related_id, with_related
from gateway.identity.request_context import RequestContext
from gateway.protocol.handshake import capabilities_of
from gateway.protocol.merged_lists import cursor_of, next_cursor
from gateway.protocol.methods import METHODS
from gateway.protocol.params import text_of
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from gateway.tasks.gateway_tasks.task_requests import session_of
from gateway.tasks.relay_interfaces import CallIntake, TaskServers
from gateway.tasks.relayed_tasks import RelayedTasks
from gateway.tasks.requested_tasks import RequestedTasks
from gateway.tasks.task_handles import TaskHandle
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from transports.era import Era
from transports.inbound_port import Answer, Refused, Request
from transports.jsonrpc import METHOD_NOT_FOUND, Object, encode, encode_result

_LIST_S: Final = 10.0
"""Seconds that a server may take to list its tasks."""

_MADE: Final = ""
"""Stands for the tasks of the gateway in a cursor, in the place of a server's name."""

_MOST_LISTED: Final = 1_024
"""Maximum number of tasks that are forwarded from one page of a server."""


@dataclass(eq=False, repr=False, kw_only=True)
class LegacyTasks:
    """Handles calls of legacy clients that request a task, and their requests about tasks."""

    relayed: RelayedTasks
    intake: CallIntake
    resolver: SessionResolver
    endpoints: Mapping[str, TaskServers]
    requested: RequestedTasks

    async def begin(self, coming: IncomingCall) -> Answer:
        """Answer a call that requests a task. The gateway or the server creates the task; a server without tasks may
        send an ordinary result. Raises the errors of `CallIntake.accept` and `RequestedTasks.begin`."""
        exchange, request = coming.exchange, coming.request
        live = live_session_of(exchange)
        if live is not None:
            await self.intake.count_call(live, request)  # the call counts before anything is asked or stored for it
        made = await self.requested.begin(exchange, request, coming.who)
        if made is not None:
            return made
        exchange.filter_result(lambda created, result: self.relayed.created_legacy(created, result, request.endpoint))
        return await self.intake.accept_counted(coming)

    async def call(self, request: Request, who: RequestContext, resolved: Resolved) -> Answer:
        """Answer a request of a legacy client about tasks, such as `tasks/get` or `tasks/list`. `resolved` is the
        session of the request.

        Raises:
            Refused: the task is unknown, or no server behind this endpoint has tasks.
            OwnedByPeer: another replica owns the session of the task.
            StoreUnavailable: the store does not answer.
        """
        message = message_of(request)
        method = str(message.method)
        if not METHODS[method].named:
            await self.intake.count_message(resolved.live)
            with self.intake.in_flight(resolved.live, request):
                page = await self._list(request, who, resolved)
            return ImmediateReply(encode_result(encode(message.id), encode(page)), live=resolved.live)
        text = text_of(request.params, "taskId")
        handle = self.relayed.handles.read_at(text, request.endpoint)
        try:
            return await self._about(request, who, resolved, handle, text)
        except Refused as refused:
            refused.about(handle.log_facts)
            raise

    async def _about(
        self, request: Request, who: RequestContext, resolved: Resolved, handle: TaskHandle, text: str
    ) -> Answer:
        if handle.kind == "made":
            return await self.requested.call(request, who, resolved, handle, text)
        if handle.session_id != resolved.live.session.id:
            # Another session of the same principal: a child session, or one from before a restart of the client.
            resolved = await session_of(handle, who, self.resolver, Era.LEGACY)
        live, is_result = resolved.live, message_of(request).method == "tasks/result"

        def shape(exchange: Exchange, result: Object) -> Object:
            if is_result:
                self.relayed.known.release(live, handle)
                return with_related(result, text) if related_id(result) else result
            if "taskId" in result:
                self.relayed.note(exchange, handle, text, result, "ttl")
                result = result | {"taskId": msgspec.Raw(encode(text))}
            return result

        return await self.relayed.ask(request, who, resolved, handle, text, shape)

    # -- tasks/list

    async def _list(self, request: Request, who: RequestContext, resolved: Resolved) -> dict[str, Any]:
        """Return the result of a `tasks/list`: one page of tasks, and the cursor of the next. First come the tasks that
        the gateway has created for the principal, then those of the session at each server. Servers that the session
        has not used are not asked.

        Raises:
            Refused: neither the gateway nor a server has tasks for this session, or the cursor is not the gateway's.
        """
        live, used = resolved.live, self._listing(request.endpoint, resolved)
        names = [_MADE, *used]
        name, cursor = next(iter((cursor_of(request.params, names) or {_MADE: ""}).items()))
        tasks: list[Any] = []
        for each in names[names.index(name) :]:
            after = cursor if each == name else ""
            if each == _MADE:
                page, more = await self.requested.listed(live, request.endpoint, who, after)
                tasks += page
            else:
                told = await self._page(used[each][1], after)
                tasks += self._named(live, *used[each], told, request.endpoint)
                more = told["nextCursor"] if isinstance(told.get("nextCursor"), str) else ""
            if more and (following := next_cursor({each: more})) is not None:
                return {"tasks": tasks, "nextCursor": following}
        return {"tasks": tasks}

    def _listing(self, path: str, resolved: Resolved) -> dict[str, tuple[ConfiguredUpstream, Conversation]]:
        """Return the servers of the endpoint `path` that list tasks and have an open link for the session, by name.
        Each comes with its conversation. Raises `Refused`: neither the gateway nor a server has tasks for this
        session."""
        used: dict[str, tuple[ConfiguredUpstream, Conversation]] = {}
        has_any = False
        for name, upstream in self.endpoints[path].servers(resolved.context).items():
            tasks = capabilities_of(upstream.handshake).get("tasks")
            if not isinstance(tasks, dict) or "list" not in tasks:
                continue
            has_any = True
            shared = upstream.settings.shared
            conversation = upstream.sessionless(Era.LEGACY) if shared else upstream.any_conversation(resolved.live)
            if conversation is not None and conversation.is_open and conversation.era is Era.LEGACY:
                used[name] = (upstream, conversation)
        if not has_any and not self.requested.is_for(resolved.live):
            raise Refused(200, METHOD_NOT_FOUND, "Method not found: tasks/list")
        return used

    @staticmethod
    async def _page(conversation: Conversation, cursor: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_LIST_S):
                await conversation.ready()
                answer = await conversation.ask("tasks/list", encode({"cursor": cursor} if cursor else {}))
        except (*UNREACHED, TimeoutError):
            return {}
        page = msgspec.json.decode(answer.result) if isinstance(answer.result, msgspec.Raw) else None
        return page if isinstance(page, dict) else {}

    def _named(
        self,
        live: LiveSession,
        upstream: ConfiguredUpstream,
        conversation: Conversation,
        page: dict[str, Any],
        endpoint: str,
    ) -> list[Any]:
        """Return the session's tasks from `page`, one page of a server's `tasks/list`. Each has the client's handle in
        place of the server's id."""
        listed = page.get("tasks")
        named: list[Any] = []
        is_own = conversation.is_process and not upstream.settings.shared
        for task in listed[:_MOST_LISTED] if isinstance(listed, list) else ():
            if isinstance(task, dict) and isinstance(own := task.get("taskId"), str):
                text = self.relayed.handle_for(live, conversation, endpoint, own, is_own=is_own)
                if text is not None:
                    named.append(task | {"taskId": text})
        return named
