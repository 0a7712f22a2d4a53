"""Give modern clients tasks for their calls, and answer `tasks/get`, `tasks/update` and `tasks/cancel`.

A task's id names its session and its server. A client needs only the id, and the credential of the principal that made
the call. So no answer contains the session's token: ids may be kept where such a token must not be.
"""

from collections.abc import Awaitable, Mapping

from gateway.calls.call import id_of, message_of
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.identity.request_context import RequestContext
from gateway.protocol.listing import Called
from gateway.protocol.params import text_of
from gateway.protocol.tasks import declares_tasks
from gateway.sessions.resolve import SessionResolver
from gateway.tasks.errors import tasks_not_declared
from gateway.tasks.handles import TaskHandle
from gateway.tasks.made.made_tasks import MadeTasks, session_of
from gateway.tasks.made.maker import TaskMaker
from gateway.tasks.made.task_exchange import TaskExchange
from gateway.tasks.ports import Endpoint
from gateway.tasks.relayed_tasks import RelayedTasks
from gateway.tasks.subscriptions import TaskListening
from gateway.tasks.task_encoding import declaring_tasks
from transports.era import Era
from transports.inbound_port import Answer, HeaderList, Refused, Request
from transports.jsonrpc import Object, encode, encode_result


class ModernTasks:
    """Gives modern clients tasks for their calls, and answers their requests about tasks. `maker` is None if no tasks
    are made (`gateway.tasks.enabled`). Requests about earlier tasks are still answered then."""

    def __init__(
        self,
        *,
        relayed: RelayedTasks,
        made: MadeTasks,
        maker: TaskMaker | None,
        resolver: SessionResolver,
        endpoints: Mapping[str, Endpoint],
        listening: TaskListening,
    ) -> None:
        self.listening = listening
        self._relayed = relayed
        self._made = made
        self._maker = maker
        self._resolver = resolver
        self._endpoints = endpoints

    # -- calls that may become tasks

    @property
    def exchange(self) -> type[Exchange]:
        """Return the class of exchange (call of a client) for clients that declare the extension of tasks."""
        return Exchange if self._maker is None else TaskExchange

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """Return the `CreateTaskResult` for the client, from the one that a server has sent or the gateway has made.
        `is_declared`: the client declares the extension of tasks.

        Raises:
            Refused: the client cannot have the server's task. The task is cancelled then.
        """
        if isinstance(exchange, TaskExchange) and exchange.work is not None:
            return result
        return self._relayed.created(exchange, result, endpoint, is_declared=is_declared)

    def declared(self, discovery: bytes) -> bytes:
        """Return a `server/discover` result that declares the extension of tasks, unless no tasks are made."""
        return discovery if self._maker is None else declaring_tasks(discovery)

    async def answer(
        self, exchange: Exchange, request: Request, headers: HeaderList, accepting: Awaitable[Answer]
    ) -> Answer:
        """Return the reply to a call of a client that declares the extension of tasks. `accepting` sends the call to
        its server. Raises the errors of `accepting`."""
        if self._maker is None or not isinstance(exchange, TaskExchange):
            return await accepting
        return await self._maker.answer(exchange, request, headers, accepting, lambda: self._tool(exchange, request))

    def resumed(self, exchange: Exchange, request: Request, reply: Answer) -> Answer:
        """Return the reply to a client that has answered questions of its call: `reply`, or the handle of a task."""
        if self._maker is None or not isinstance(exchange, TaskExchange):
            return reply
        return self._maker.resumed(exchange, request, reply, lambda: self._tool(exchange, request))

    def _tool(self, exchange: Exchange, request: Request) -> Called:
        return self._endpoints[request.endpoint].called(exchange, Era.MODERN, request.params)

    # -- requests about a task

    async def call(self, request: Request, who: RequestContext) -> Answer:
        """Answer a `tasks/get`, `tasks/update` or `tasks/cancel`.

        Raises:
            Refused: the client does not declare the extension of tasks, or the task is unknown.
            OwnedByPeer: another replica owns the session of the task.
            StoreUnavailable: the store does not answer.
        """
        method = str(message_of(request).method)
        if not declares_tasks(request.meta):
            raise tasks_not_declared(f"{method} is about a task")
        text = text_of(request.params, "taskId")
        handle = self._relayed.handles.read_at(text, request.endpoint)
        try:
            if handle.kind == "relayed":
                resolved = await session_of(handle, who, self._resolver, Era.MODERN)
                shape = self._relayed.answer_shape(handle, text)
                return await self._relayed.ask(request, who, resolved, handle, text, shape)
            result = await self._ask(request, who, handle)
        except Refused as refused:
            refused.about(handle.log_facts)
            raise
        return ImmediateReply(encode_result(encode(id_of(message_of(request))), result), log_facts=handle.log_facts)

    async def _ask(self, request: Request, who: RequestContext, handle: TaskHandle) -> bytes:
        """Return the result of a request about a task that the gateway has made."""
        match message_of(request).method:
            case "tasks/get":
                return await self._made.get(handle, text_of(request.params, "taskId"), who)
            case "tasks/update":
                return await self._made.update(handle, request.params, who)
            case _:
                return await self._made.cancel(handle, who)
