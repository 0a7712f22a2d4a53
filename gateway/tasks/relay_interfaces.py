"""Define the interfaces of `gateway.relay` that tasks use: sending calls, and the servers of an endpoint."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.identity.request_context import RequestContext
from gateway.protocol.merged_lists import Called
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import Context
from transports.era import Era
from transports.inbound_port import Answer, HeaderList, Request
from transports.jsonrpc import Object


class CallIntake(Protocol):
    """Accepts the calls of clients. Implemented by `gateway.relay.call.Intake`, which lists the errors of each
    method."""

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
        """Count a call and send it to its server. Return the reply that will deliver the answer, with the response
        headers `headers`. `server` is the server's name; if empty, the params of the call determine it."""

    async def accept_counted(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, headers: HeaderList
    ) -> Answer:
        """Send a call that was counted already. Return the reply that will deliver the answer."""

    def begin(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, headers: HeaderList
    ) -> tuple[Answer, Object]:
        """Begin the reply to a counted call that is not sent to a server. Return it, and the `_meta` that a server
        would get."""

    async def admit(self, live: LiveSession, request: Request) -> None:
        """Count a call before any work is done for it. Raises `Refused`: 429, too many calls; 404, the session has
        ended."""

    async def count(self, live: LiveSession) -> None:
        """Count a message other than a call in a session. Raises `Refused`: 429, too many; 404, the session has
        ended."""

    def waiting(
        self, live: LiveSession, request: Request, exchange: Exchange | None = None
    ) -> AbstractContextManager[None]:
        """Return a context manager in which a request counts as in flight. With `exchange`, the client can cancel it.
        Raises `Refused`: 429, too many calls are in flight."""


class TaskServers(Protocol):
    """The servers behind one URL of the gateway (`gateway.relay.endpoint_servers.EndpointServers`)."""

    def servers(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """Return the servers of the endpoint that a session with this context sees, by name."""

    def server(self, name: str, context: Context) -> ConfiguredUpstream | None:
        """Return the server with this name. None if this endpoint has none that a session with this context sees."""

    def called(self, exchange: Exchange, client: Era, params: Object) -> Called:
        """Return what is known of the called tool without a request to its server. `client` is the client's era."""
