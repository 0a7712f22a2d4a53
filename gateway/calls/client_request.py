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
    """A client's request that is to be sent: its exchange (the state of the call), the request itself, its sender
    `who`, the params for the server, and the headers of the response to the client."""

    exchange: Exchange
    request: Request
    who: RequestContext
    params: Object
    headers: HeaderList = []


class Call(msgspec.Struct, frozen=True):
    """A client's request, with the values that the steps on its way to the server need.

    `era` is the client's era. `meta` is sent to the server as `_meta`, in place of any `_meta` in `params`.
    `correlation` is the correlation id. `server` names the server that gets the request; if empty, the tool, prompt or
    resource determines the server. `principal` is the sender. `check_mirrored` compares HTTP headers with arguments
    (`transports.inbound_port.Request`); None if there is nothing to compare. `headers` are the headers of a modern
    request, by lower-case name.
    """

    exchange: Exchange
    era: Era
    params: Object
    meta: Object
    correlation: str
    check_mirrored: Callable[[Any, Object], None] | None = None
    server: str = ""
    principal: Principal | None = None
    headers: Mapping[str, str] | None = None

    @property
    def method(self) -> str:
        return self.exchange.method

    @property
    def live(self) -> LiveSession | None:
        """Return the session of the request. If the request names a child session by its handle, return the child
        session."""
        return live_session_of(self.exchange)

    def with_params(self, params: Object) -> "Call":
        """Return the same request with other params."""
        return self if params is self.params else replace(self, params=params)


def message_of(request: Request) -> Message:
    """Return the JSON-RPC message of an HTTP request that must have one."""
    assert request.message is not None
    return request.message


def id_of(message: Message) -> RequestId:
    """Return the id of a message that must be a request."""
    assert isinstance(message.id, (int, str))  # not `int | str`, which builds a union on each call
    return message.id
