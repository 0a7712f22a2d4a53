"""Define the two forms of a client's request on its way to a server: as it comes in (`IncomingCall`), and as the later
steps get it (`Call`)."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.identity.request_context import RequestContext
from session_store import Principal
from transports.era import Era
from transports.inbound_port import HeaderList, Request
from transports.jsonrpc import Message, Object, RequestId


class IncomingCall(msgspec.Struct, frozen=True):
    """A client's request that has to be sent to a server, as it comes in."""

    exchange: Exchange
    """The state of the call."""
    request: Request
    who: RequestContext
    """The sender and its rights."""
    params: Object
    """The params for the server."""
    headers: HeaderList = []
    """The headers of the response to the client."""


class Call(msgspec.Struct, frozen=True):
    """A client's request, with the values that the steps on its way to the server need."""

    exchange: Exchange
    era: Era
    """The era of the client."""
    params: Object
    meta: Object
    """The `_meta` for the server. It takes the place of any `_meta` in `params`."""
    correlation: str
    """The correlation id."""
    check_mirrored: Callable[[Any, Object], None] | None = None
    """Compares HTTP headers with the arguments that they repeat (`transports.inbound_port.Request`). None if there is
    nothing to compare."""
    server: str = ""
    """The name of the server that gets the request. If empty, the tool, prompt or resource that the request names
    determines the server."""
    principal: Principal | None = None
    """The sender."""
    headers: Mapping[str, str] | None = None
    """The HTTP headers of a modern client's request, by lower-case name. None for a legacy client."""

    @property
    def method(self) -> str:
        return self.exchange.method

    @property
    def live(self) -> LiveSession | None:
        """Return the session of the request; None if it has none. If the request names a child session by its handle,
        return the child session."""
        return live_session_of(self.exchange)

    def with_params(self, params: Object) -> "Call":
        """Return the same request with other params."""
        return self if params is self.params else replace(self, params=params)


def message_of(request: Request) -> Message:
    """Return the JSON-RPC message of an HTTP request. Call this only for a request that has a message."""
    assert request.message is not None
    return request.message


def id_of(message: Message) -> RequestId:
    """Return the JSON-RPC id of a message. Call this only for a message that is a request."""
    assert isinstance(message.id, (int, str))  # not `int | str`, which builds a union on each call
    return message.id
