"""Turn calls of modern clients into tasks, and answer `tasks/get`, `tasks/update` and `tasks/cancel`.

A task's id names its session and its server. To use a task, a client needs only the task's id and a credential of the
principal that made the call. No answer contains the session's token, because ids may be stored where a token must not
be.
"""

import functools
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from gateway.calls.client_request import IncomingCall, id_of, message_of
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.identity.request_context import RequestContext
from gateway.protocol.merged_lists import Called
from gateway.protocol.params import text_of
from gateway.protocol.tasks import declares_tasks
from gateway.sessions.resolve import SessionResolver
from gateway.tasks.errors import tasks_not_declared
from gateway.tasks.gateway_tasks.task_exchange import TaskExchange
from gateway.tasks.gateway_tasks.task_maker import TaskMaker
from gateway.tasks.gateway_tasks.task_requests import MadeTasks, session_of
from gateway.tasks.relay_interfaces import TaskServers
from gateway.tasks.relayed_tasks import RelayedTasks
from gateway.tasks.subscriptions import TaskListening
from gateway.tasks.task_handles import TaskHandle
from gateway.tasks.task_messages import declaring_tasks
from transports.era import Era
from transports.inbound_port import Answer, Refused, Request
from transports.jsonrpc import Object, encode, encode_result


@dataclass(eq=False, repr=False, kw_only=True)
class ModernTasks:
    """Turns calls of modern clients into tasks, and answers requests about tasks."""

    relayed: RelayedTasks
    made: MadeTasks
    maker: TaskMaker | None
    """None if tasks are off (`gateway.tasks.enabled`): only requests about existing tasks are answered then."""
    resolver: SessionResolver
    endpoints: Mapping[str, TaskServers]
    listening: TaskListening

    # -- calls that may become tasks

    @property
    def exchange(self) -> type[Exchange]:
        """Return the class of the exchanges of clients that declare the tasks extension."""
        return Exchange if self.maker is None else TaskExchange

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """Return `result`, the `CreateTaskResult` of a call, as the client gets it. If a server has created the task,
        the client's handle replaces the server's id. A result of the gateway itself is returned unchanged.
        `is_declared`: the client declares the tasks extension.

        Raises:
            Refused: the client must not get the server's task. The task is cancelled.
        """
        if isinstance(exchange, TaskExchange) and exchange.work is not None:
            return result
        return self.relayed.created(exchange, result, endpoint, is_declared=is_declared)

    def declared(self, discovery: bytes) -> bytes:
        """Return a `server/discover` result that declares the tasks extension. If tasks are off, return it
        unchanged."""
        return discovery if self.maker is None else declaring_tasks(discovery)

    async def answer(self, coming: IncomingCall, accepting: Awaitable[Answer]) -> Answer:
        """Send a call of a client that declares the tasks extension, by awaiting `accepting`. Return the reply for the
        client: that of the call itself, or one with the handle of its task. Raises the errors of `accepting`."""
        exchange, request = coming.exchange, coming.request
        if self.maker is None or not isinstance(exchange, TaskExchange):
            return await accepting
        tool_of = functools.partial(self._tool, exchange, request)
        return await self.maker.answer(exchange, request, coming.headers, accepting, tool_of)

    def resumed(self, exchange: Exchange, request: Request, reply: Answer) -> Answer:
        """Return the reply to a request in which a client has answered questions of its call: `reply`, or one with the
        handle of a task if the call becomes one."""
        if self.maker is None or not isinstance(exchange, TaskExchange):
            return reply
        return self.maker.resumed(exchange, request, reply, lambda: self._tool(exchange, request))

    def _tool(self, exchange: Exchange, request: Request) -> Called:
        return self.endpoints[request.endpoint].called(exchange, Era.MODERN, request.params)

    # -- requests about a task

    async def call(self, request: Request, who: RequestContext) -> Answer:
        """Answer a `tasks/get`, `tasks/update` or `tasks/cancel`.

        Raises:
            Refused: the client does not declare the tasks extension, or the task is unknown.
            OwnedByPeer: another replica owns the session of the task.
            StoreUnavailable: the store does not answer.
        """
        method = str(message_of(request).method)
        if not declares_tasks(request.meta):
            raise tasks_not_declared(f"{method} is about a task")
        text = text_of(request.params, "taskId")
        handle = self.relayed.handles.read_at(text, request.endpoint)
        try:
            if handle.kind == "relayed":
                resolved = await session_of(handle, who, self.resolver, Era.MODERN)
                shape = self.relayed.answer_shape(handle, text)
                return await self.relayed.ask(request, who, resolved, handle, text, shape)
            result = await self._ask(request, who, handle)
        except Refused as refused:
            refused.about(handle.log_facts)
            raise
        return ImmediateReply(encode_result(encode(id_of(message_of(request))), result), log_facts=handle.log_facts)

    async def _ask(self, request: Request, who: RequestContext, handle: TaskHandle) -> bytes:
        """Return the result, as JSON, of a `tasks/get`, `tasks/update` or `tasks/cancel` about a task that the gateway
        has created."""
        match message_of(request).method:
            case "tasks/get":
                return await self.made.get(handle, text_of(request.params, "taskId"), who)
            case "tasks/update":
                return await self.made.update(handle, request.params, who)
            case _:
                return await self.made.cancel(handle, who)
