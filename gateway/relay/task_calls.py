"""Calls of modern clients that may become tasks: made here of a slow call, or by a modern server.

Knows who may have a task. What a task is, and what becomes of it, is in `gateway.tasks`.
"""

from collections.abc import Mapping

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import live_session_of
from gateway.protocol.listing import Called
from gateway.relay.endpoint import Endpoint
from gateway.tasks.answers import declaring_tasks
from gateway.tasks.made.exchange import TaskExchange
from gateway.tasks.made.maker import TaskMaker
from gateway.tasks.relayed import RelayedTasks
from transports.inbound_port import Answer, Request
from transports.jsonrpc import Object
from transports.soon import Soon

__all__ = ["TaskCalls"]

Headers = list[tuple[bytes, bytes]]


class TaskCalls:
    """Gives calls their tasks. `maker` is None where no tasks are made (`gateway.tasks.enabled`)."""

    def __init__(self, relayed: RelayedTasks, maker: TaskMaker | None, endpoints: Mapping[str, Endpoint]) -> None:
        self._relayed = relayed
        self._maker = maker
        self._endpoints = endpoints

    @property
    def exchange(self) -> type[Exchange]:
        """The kind of exchange for the call of a client that takes tasks."""
        return Exchange if self._maker is None else TaskExchange

    def created(self, exchange: Exchange, result: Object, endpoint: str, *, is_declared: bool) -> Object:
        """The `CreateTaskResult` for the client, which a server has sent or the gateway has made. `is_declared`: the
        client takes tasks.

        Raises:
            Refused: the client cannot have the server's task.
        """
        if isinstance(exchange, TaskExchange) and exchange.work is not None:
            return result
        return self._relayed.created(exchange, result, endpoint, is_declared=is_declared)

    def declared(self, discovery: bytes) -> bytes:
        """A `server/discover` result that says that calls may become tasks, if they may."""
        return discovery if self._maker is None else declaring_tasks(discovery)

    def answer(self, exchange: Exchange, request: Request, headers: Headers, accepting: Soon[Answer]) -> Soon[Answer]:
        """The reply to a call of a client that takes tasks. `accepting` sends it to its server. Raises as `accepting`
        does."""
        if self._maker is None or not isinstance(exchange, TaskExchange):
            return accepting
        return self._maker.answer(exchange, request, headers, accepting, lambda: self._tool(exchange, request))

    def resumed(self, exchange: Exchange, request: Request, reply: Answer) -> Answer:
        """The reply to a client that takes tasks, and is back with answers to what its call has asked."""
        if self._maker is None or not isinstance(exchange, TaskExchange):
            return reply
        return self._maker.resumed(exchange, request, reply, lambda: self._tool(exchange, request))

    def _tool(self, exchange: Exchange, request: Request) -> Called:
        live = live_session_of(exchange)
        return self._endpoints[request.endpoint].called(live, exchange.context, request.params)
