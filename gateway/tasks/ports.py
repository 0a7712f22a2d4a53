"""Define what tasks need of higher rooms: the sending of calls, and the servers of an endpoint (`gateway.relay`)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.identity.request_context import RequestContext
from gateway.protocol.listing import Called
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Context
from transports.era import Era
from transports.inbound_port import Answer, HeaderList, Request
from transports.jsonrpc import Object


class CallIntake(Protocol):
    """Accepts the calls of clients (`gateway.relay.call.Intake`, which names the errors of each method)."""

    async def accept(
        self,
        exchange: Exchange,
        request: Request,
        who: RequestContext,
        params: Object,
        headers: HeaderList,
        *,
        server: str = "",
    ) -> Answer:
        """Count a call, send it to its server, and return the answer to come. `headers` are for the client. `server` is
        the server's name; empty if the call itself tells it."""

    async def accept_counted(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, headers: HeaderList
    ) -> Answer:
        """Send a call that was already counted to its server, and return the answer to come."""

    def begin(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, headers: HeaderList
    ) -> tuple[Answer, Object]:
        """Begin to answer a counted call that no server gets. Return its reply, and the `_meta` for a server."""

    async def admit(self, live: LiveSession, request: Request) -> None:
        """Count a call, before work is done for it. Raises `Refused`: 429, too many; 404, the session has ended."""

    async def count(self, live: LiveSession) -> None:
        """Count a message of a session that is no call. Raises `Refused`: 429, too many; 404, the session has ended."""

    def waiting(
        self, live: LiveSession, request: Request, exchange: Exchange | None = None
    ) -> AbstractContextManager[None]:
        """Return a context manager that keeps a waiting request in flight, for its client to cancel if `exchange` is
        given. Raises `Refused`: 429, too many calls are in flight."""


class Endpoint(Protocol):
    """Knows the servers behind one URL of the gateway (`gateway.relay.endpoint.Endpoint`)."""

    def servers(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """Return the servers that a session with this context sees here, by name."""

    def server(self, name: str, context: Context) -> ConfiguredUpstream | None:
        """Return the server of that name. None: a session with this context sees no such server here."""

    def called(self, exchange: Exchange, client: Era, params: Object) -> Called:
        """Return the tool that a call of a client of that era names, as far as known without a request to a server."""
