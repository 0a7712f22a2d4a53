"""Tasks for modern clients: of which of their calls, and what they ask about one (`tasks/get`, `update`, `cancel`).

The id alone says where a task is: it names the session and the server, and whoever holds it needs nothing else but
the credential of the principal that made the call. So no answer tells the session: an id may be kept where a token of
the session must not be.
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
from gateway.tasks.answers import declaring_tasks
from gateway.tasks.handles import TaskHandle
from gateway.tasks.listening import TaskListening
from gateway.tasks.made.exchange import TaskExchange
from gateway.tasks.made.made_tasks import MadeTasks, session_of
from gateway.tasks.made.maker import TaskMaker
from gateway.tasks.ports import Endpoint
from gateway.tasks.refusals import tasks_not_declared
from gateway.tasks.relayed import RelayedTasks
from transports.era import Era
from transports.inbound_port import Answer, HeaderList, Refused, Request
from transports.jsonrpc import Object, encode, encode_result

__all__ = ["ModernTasks"]


class ModernTasks:
    """Gives calls of modern clients their tasks, and answers what these clients ask about tasks. `maker` is None where
    no tasks are made (`gateway.tasks.enabled`): earlier ones are still answered."""

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
        """The kind of exchange for the call of a client that takes tasks."""
        return Exchange if self._maker is None else TaskExchange

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """Return the `CreateTaskResult` for the client, which a server has sent or the gateway has made. `is_declared`:
        the client takes tasks.

        Raises:
            Refused: the client cannot have the server's task.
        """
        if isinstance(exchange, TaskExchange) and exchange.work is not None:
            return result
        return self._relayed.created(exchange, result, endpoint, is_declared=is_declared)

    def declared(self, discovery: bytes) -> bytes:
        """Return a `server/discover` result that says that calls may become tasks, if they may."""
        return discovery if self._maker is None else declaring_tasks(discovery)

    async def answer(
        self, exchange: Exchange, request: Request, headers: HeaderList, accepting: Awaitable[Answer]
    ) -> Answer:
        """Return the reply to a call of a client that takes tasks. `accepting` sends it to its server. Raises as
        `accepting` does."""
        if self._maker is None or not isinstance(exchange, TaskExchange):
            return await accepting
        return await self._maker.answer(exchange, request, headers, accepting, lambda: self._tool(exchange, request))

    def resumed(self, exchange: Exchange, request: Request, reply: Answer) -> Answer:
        """Return the reply to a client that takes tasks, and is back with answers to what its call has asked."""
        if self._maker is None or not isinstance(exchange, TaskExchange):
            return reply
        return self._maker.resumed(exchange, request, reply, lambda: self._tool(exchange, request))

    def _tool(self, exchange: Exchange, request: Request) -> Called:
        return self._endpoints[request.endpoint].called(exchange, Era.MODERN, request.params)

    # -- requests about a task

    async def call(self, request: Request, who: RequestContext) -> Answer:
        """Answer a request about a task.

        Raises:
            Refused: the client does not declare the extension, or the task is unknown.
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
                return await self._relay(request, who, handle, text)
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

    async def _relay(self, request: Request, who: RequestContext, handle: TaskHandle, text: str) -> Answer:
        """Send the request to the server that has made the task."""
        resolved = await session_of(handle, who, self._resolver, Era.MODERN)
        return await self._relayed.ask(request, who, resolved, handle, text, self._relayed.answer_shape(handle, text))
