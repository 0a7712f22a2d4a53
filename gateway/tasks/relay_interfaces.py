"""Define the interfaces of `gateway.relay` that tasks use: sending calls, and the servers of an endpoint."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.calls.client_request import IncomingCall
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.protocol.merged_lists import Called
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import Context
from transports.era import Era
from transports.inbound_port import Answer, Request
from transports.jsonrpc import Object


class CallIntake(Protocol):
    """The part of `gateway.relay.call.Intake` that tasks use. The methods are described there."""

    async def accept(self, coming: IncomingCall, *, server: str = "") -> Answer: ...
    async def accept_counted(self, coming: IncomingCall) -> Answer: ...
    def begin(self, coming: IncomingCall) -> tuple[Answer, Object]: ...
    async def count_call(self, live: LiveSession, request: Request) -> None: ...
    async def count_message(self, live: LiveSession) -> None: ...
    def in_flight(
        self, live: LiveSession, request: Request, exchange: Exchange | None = None
    ) -> AbstractContextManager[None]: ...


class TaskServers(Protocol):
    """The part of `gateway.relay.endpoint_servers.EndpointServers` that tasks use. The methods are described there."""

    def servers(self, context: Context) -> Mapping[str, ConfiguredUpstream]: ...
    def server(self, name: str, context: Context) -> ConfiguredUpstream | None: ...
    def called(self, exchange: Exchange, client: Era, params: Object) -> Called: ...
