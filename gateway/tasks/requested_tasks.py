"""Create tasks for calls of 2025-11-25 clients that request one, and answer these clients' requests about the tasks.

The tasks are run as for modern clients (`gateway.tasks.gateway_tasks`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.calls.client_request import IncomingCall, id_of, message_of
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.config.limits import TaskSettings
from gateway.errors import cancelled_by_client, unknown_tool
from gateway.identity.request_context import RequestContext
from gateway.protocol.handshake import capabilities_of
from gateway.protocol.merged_lists import Called
from gateway.protocol.tasks import takes_task_calls
from gateway.sessions.session_attaching import Resolved
from gateway.tasks.errors import no_task_of
from gateway.tasks.gateway_tasks.result_requests import ResultCalls
from gateway.tasks.gateway_tasks.task_exchange import RequestedExchange
from gateway.tasks.gateway_tasks.task_maker import TaskMaker
from gateway.tasks.gateway_tasks.task_requests import MadeTasks
from gateway.tasks.relay_interfaces import CallIntake, TaskServers
from gateway.tasks.task_handles import TaskHandle, TaskHandles
from gateway.tasks.task_messages import VERSION, created_legacy_result, declaring_legacy_tasks, legacy_task
from session_store import Task
from session_store.session import redact
from transports.era import Era
from transports.inbound_port import Answer, OwnedByPeer, Request
from transports.jsonrpc import INVALID_PARAMS, InvalidMessage, Object, decode_object, encode, encode_result

_LEAST_S: Final = 60.0
"""Minimum seconds for which an outcome is stored, unless the settings allow less. Clients may request too little time
to fetch it."""

_NULL: Final = b"null"
_NUMBER: Final = frozenset(b"-0123456789")


@dataclass(eq=False, repr=False, kw_only=True)
class RequestedTasks:
    """Creates tasks for clients that request them, and answers requests about these tasks."""

    settings: TaskSettings
    maker: TaskMaker | None
    """None if tasks are off (`gateway.tasks.enabled`): only requests about existing tasks are answered then."""
    made: MadeTasks
    results: ResultCalls
    handles: TaskHandles
    intake: CallIntake
    endpoints: Mapping[str, TaskServers]

    def __post_init__(self) -> None:
        self.has_offers = self.maker is not None and bool(self.settings.offered)
        """Set if lists of tools have to say which tools are offered as tasks."""

    # -- what clients are told

    def is_for(self, live: LiveSession) -> bool:
        """Return True if calls of `live` may become tasks: tasks are on, and the session's protocol version is
        2025-11-25."""
        return self.maker is not None and live.session.client.protocol_version == VERSION

    def declared(self, handshake: bytes, version: str) -> bytes:
        """Return an `initialize` result that declares that tools can be called as tasks. Return it unchanged if they
        cannot. `version` is the protocol version in it."""
        if self.maker is None or version != VERSION or "tools" not in capabilities_of(handshake):
            return handshake
        return declaring_legacy_tasks(handshake)

    def offer(self, exchange: Exchange, endpoint: str) -> None:
        """Have the result of a `tools/list` (`exchange`) mark the tools that can be called as tasks, when it comes. Do
        nothing if the client cannot use tasks."""
        live = live_session_of(exchange)
        if live is not None and self.is_for(live):
            exchange.filter_result(lambda made, result: self._with_offers(made, result, endpoint))

    def _with_offers(self, exchange: Exchange, result: Object, path: str) -> Object:
        if "tools" not in result:
            return result
        listed = msgspec.json.decode(result["tools"], type=list[msgspec.Raw])
        return result | {"tools": msgspec.Raw(encode([self._with_offer(exchange, tool, path) for tool in listed]))}

    def _with_offer(self, exchange: Exchange, raw: msgspec.Raw, path: str) -> msgspec.Raw:
        """Return the listed tool `raw`. It is marked as callable as a task if the settings offer this and its server
        says nothing about tasks; otherwise it is unchanged."""
        tool = decode_object(raw, "a tool")
        execution = decode_object(tool.get("execution", msgspec.Raw(b"{}")), "execution")
        called = self.endpoints[path].called(exchange, Era.LEGACY, tool)
        if "taskSupport" in execution or not called.server or not self.settings.is_offered(called.server, called.name):
            return raw
        execution |= {"taskSupport": msgspec.Raw(b'"optional"')}
        return msgspec.Raw(encode(tool | {"execution": msgspec.Raw(encode(execution))}))

    # -- a call that asks for a task

    async def begin(self, exchange: Exchange, request: Request, who: RequestContext) -> Answer | None:
        """Create a task for a call that requests one, send the call, and return the answer with the task's handle. The
        call must already be counted against the rate limit of its session. Return None if the gateway creates no task:
        the call must be sent to its server unchanged.

        Raises:
            Refused: there are too many tasks, or the tool forbids them, is unknown or not allowed.
            InvalidMessage: `params.task` cannot be read.
            StoreError: the store cannot be written.
        """
        live, params = live_session_of(exchange), request.params
        if self.maker is None or live is None or exchange.method != "tools/call" or not self.is_for(live):
            return None
        with self.intake.in_flight(live, request, exchange):
            tool = await self._tool(live, exchange, request, who.correlation)
            if exchange.is_over:
                raise cancelled_by_client()
            if tool is None:
                return None
            for_s = kept_s(params["task"], self.settings.ttl_s)
            plain = {key: value for key, value in params.items() if key != "task"}
            call = msgspec.structs.replace(request, params=plain)
            asked = RequestedExchange.of(live, exchange.context, granted=exchange.granted, kept_s=for_s)
            # `in_flight` keeps the session in use until `accept_counted` does.
            running = await self.maker.begin(asked, call, tool)
        created, handle = running.task, self.handles.of_record(running.task)
        asked.known_as(handle)
        try:
            running.hold(await self.intake.accept_counted(IncomingCall(asked, call, who, plain)))
        except BaseException:
            await self.maker.undo(running)
            raise
        result = created_legacy_result(created, handle)
        shaped = result if exchange.shape is None else exchange.shape(exchange, result)
        facts = {"session": redact(live.session.id), **running.log_facts}
        return ImmediateReply(encode_result(encode(exchange.client_id), encode(shaped)), log_facts=facts)

    async def _tool(self, live: LiveSession, exchange: Exchange, request: Request, correlation: str) -> Called | None:
        """Return the called tool if the gateway must create the task for the call; None if the call must be sent to the
        server unchanged. Raises `Refused`: neither the gateway nor the server can create a task."""
        endpoint = self.endpoints[request.endpoint]
        tool = endpoint.called(exchange, Era.LEGACY, request.params)
        upstream = endpoint.server(tool.server, exchange.context)
        if upstream is None:
            return None
        try:
            conversation = upstream.conversation(live, await upstream.era_for(Era.LEGACY) or Era.LEGACY, correlation)
            await upstream.server_lists.listed("tools/list", conversation, tool.name)
        except UNREACHED:
            return None  # the call itself is about to fail
        tool = endpoint.called(exchange, Era.LEGACY, request.params)
        makes_tasks = takes_task_calls(upstream.handshake) and upstream.era_now(Era.LEGACY) is Era.LEGACY
        if makes_tasks and (tool.task_support or tool.is_unlisted):
            return None
        if tool.is_unlisted:  # the server might answer, but a client that wants a task cannot use an ordinary answer
            raise unknown_tool(tool.name)
        if tool.task_support == "forbidden":
            raise no_task_of(tool.name)
        return tool

    # -- requests about a task

    async def call(
        self, request: Request, who: RequestContext, resolved: Resolved, handle: TaskHandle, text: str
    ) -> Answer:
        """Answer a request about a task that the gateway has created. `resolved` is the session of the request. `text`
        is the client's handle, whose contents are `handle`. Raises the errors of `MadeTasks.cancelled`."""
        message = message_of(request)
        if message.method == "tasks/cancel":
            task = await self.made.cancelled(handle, who)
        elif message.method == "tasks/result":
            await self.made.counted(handle, who)
            return self._result(request, who, resolved, handle, text)
        else:
            task = await self._look(handle, who, counts=True)
        result = encode(legacy_task(task, text))
        return ImmediateReply(encode_result(encode(id_of(message)), result), log_facts=handle.log_facts)

    async def _look(
        self, handle: TaskHandle, who: RequestContext, known: Task | None = None, *, counts: bool = False
    ) -> Task:
        if known is not None:
            return await self.made.checked(known, handle, who)
        try:
            return await self.made.current(handle, who, counts=counts)
        except OwnedByPeer:
            # Another replica owns the task's session, but the session of this request is here. The record is enough.
            return await self.made.find(handle, who)

    def _result(
        self, request: Request, who: RequestContext, resolved: Resolved, handle: TaskHandle, text: str
    ) -> Answer:
        call = Exchange(
            method="tasks/result",
            client_id=id_of(message_of(request)),
            live=resolved.live,
            context=resolved.context,
            granted=who.claims,
        )
        call.add_log_facts(handle.log_facts)
        reply, _ = self.intake.begin(IncomingCall(call, request, who, request.params))
        self.results.begin(call, handle, text, lambda known: self._look(handle, who, known))
        return reply

    async def listed(self, live: LiveSession, endpoint: str, who: RequestContext, after: str) -> tuple[list[Any], str]:
        """Return a page of the tasks that this client may see, in the form for legacy clients, and the cursor for the
        next page. `after` is the cursor that the client has sent (`MadeTasks.page`)."""
        tasks, more = await self.made.page(live.session, endpoint, who, after)
        return [legacy_task(task, self.handles.of_record(task)) for task in tasks], more


def kept_s(raw: msgspec.Raw, most_s: float) -> float:
    """Return how many seconds to store the outcome of a task. That is the time that the client asks for in `raw`
    (`params.task`), but at least `_LEAST_S` and at most `most_s`; `most_s` if it asks for none. Raises
    `InvalidMessage`: `raw` cannot be read."""
    ttl = bytes(decode_object(raw, "params.task").get("ttl", _NULL))
    if ttl == _NULL:
        return most_s
    if ttl[0] not in _NUMBER:
        raise InvalidMessage(INVALID_PARAMS, "params.task.ttl must be a number of milliseconds")
    ttl_ms = float(ttl)  # JSON has numbers that are too large for any type: here they are infinite
    return min(max(ttl_ms / 1_000, _LEAST_S), most_s)
