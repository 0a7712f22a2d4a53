"""What tasks need of the rooms above: how a call is sent, and which servers there are (`gateway.relay` has both)."""

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

__all__ = ["Calls", "Endpoint"]


class Calls(Protocol):
    """Accepts the calls of clients (`gateway.relay.call.Intake`, which says what each method raises)."""

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
        """Send a call to its server."""
        ...

    async def accept_counted(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, headers: HeaderList
    ) -> Answer:
        """Do as `accept`, for a call that was counted."""
        ...

    def begin(
        self, exchange: Exchange, request: Request, who: RequestContext, params: Object, headers: HeaderList
    ) -> tuple[Answer, Object]:
        """Begin to answer a call that was counted, and that no server gets."""
        ...

    async def admit(self, live: LiveSession, request: Request) -> None:
        """Count a call for which something is made before it is accepted."""
        ...

    async def count(self, live: LiveSession) -> None:
        """Count a message of a session that is no call."""
        ...

    def waiting(
        self, live: LiveSession, request: Request, exchange: Exchange | None = None
    ) -> AbstractContextManager[None]:
        """Return what to put around the time that a request waits before it is accepted or answered."""
        ...


class Endpoint(Protocol):
    """The servers behind one URL (`gateway.relay.endpoint.Endpoint`)."""

    def servers(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """Return the servers that a session with this context sees here, by name."""
        ...

    def server(self, name: str, context: Context) -> ConfiguredUpstream | None:
        """Return the server of that name; None if there is none here that a session with this context sees."""
        ...

    def called(self, exchange: Exchange, client: Era, params: Object) -> Called:
        """Return the tool of a call of a client of that era, as far as it is known without a request to its server."""
        ...
