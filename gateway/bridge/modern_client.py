"""Calls of modern clients: a session without a handshake, told in results, found again by a sealed state.

MCP 2026-07-28.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.bridge.handshake import HANDSHAKE_VERSIONS
from gateway.bridge.input_required import (
    INPUT_REQUIRED_METHODS,
    StateSeal,
    is_input_required,
    request_digest,
    with_inner_state,
)
from gateway.context import SESSION_KEY, with_meta
from gateway.endpoint import Endpoint
from gateway.exchange import Exchange
from gateway.relay import Relay, id_of, message_of
from gateway.reply import ImmediateReply
from gateway.sessions import Resolved, Sessions
from session_store import Principal
from transports.base import Answer, Era, Refused, ReplyQueue, Request
from transports.jsonrpc import METHOD_NOT_FOUND, Message, Object, encode, encode_result

__all__ = ["ModernClients"]

UNSUPPORTED_VERSION: Final = -32022

_SESSIONLESS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
"""Modern methods that open no session; a client that has one is served in it."""

_CACHEABLE = _SESSIONLESS | {"server/discover", "resources/read"}
"""Modern results that may be cached, so that nothing of the session may stand in them."""


class ModernClients:
    """What a client of 2026-07-28 sends."""

    def __init__(self, *, relay: Relay, sessions: Sessions, endpoints: Mapping[str, Endpoint], seal: StateSeal) -> None:
        self._relay = relay
        self._sessions = sessions
        self._endpoints = endpoints
        self._seal = seal

    async def call(self, request: Request, principal: Principal, correlation: str) -> Answer:
        """Answer a request."""
        message, endpoint = message_of(request), self._endpoints[request.endpoint]
        method = str(message.method)
        if method == "server/discover":
            return await self._discover(message, endpoint)
        if not await endpoint.speaks_modern():
            raise Refused(
                400,
                UNSUPPORTED_VERSION,
                "Unsupported protocol version: the server behind speaks the handshake era.",
                data={"supported": list(HANDSHAKE_VERSIONS), "requested": request.protocol_version},
            )
        params = request.params
        digest = ""
        if method in INPUT_REQUIRED_METHODS:
            digest = request_digest(method, params)
        if digest and "requestState" in params and bytes(params["requestState"]) != b"null":
            opened = self._seal.open(params["requestState"], principal=principal, digest=digest)
            resolved: Resolved | None = await self._sessions.resume_by_id(opened.session_id, principal, Era.MODERN)
            params = with_inner_state(params, opened)
        elif method in _SESSIONLESS:
            resolved = await self._sessions.resume(request, principal)
        else:
            resolved = await self._sessions.resume_or_open(request, principal)
        live = None if resolved is None else resolved.live
        headers = [] if resolved is None else self._sessions.headers(resolved, request)

        def shape(exchange: Exchange, result: Object) -> Object:
            return self._shape(exchange, result, principal, digest, correlation)

        exchange = Exchange(method=method, client_id=id_of(message), live=live, replies=ReplyQueue(), shape=shape)
        return await self._relay.send(exchange, endpoint, Era.MODERN, params, headers, correlation, request)

    def _shape(self, exchange: Exchange, result: Object, principal: Principal, digest: str, correlation: str) -> Object:
        """A modern result as the client gets it."""
        live = exchange.live
        if exchange.is_subscription:
            own_id = msgspec.Raw(encode(exchange.client_id))
            result = with_meta(result, {"io.modelcontextprotocol/subscriptionId": own_id})
        asks = bool(digest) and is_input_required(result)
        if live is None or (exchange.method in _CACHEABLE and not asks):
            return result
        session = live.session
        if asks:
            result = self._seal.seal(result, session_id=session.id, principal=principal, digest=digest)
        additions = {SESSION_KEY: msgspec.Raw(encode(self._sessions.token(session)))}
        return with_meta(result, additions | self._relay.trace(live, correlation))

    async def _discover(self, message: Message, endpoint: Endpoint) -> Answer:
        result = await endpoint.discover()
        if result is None:
            raise Refused(
                404, METHOD_NOT_FOUND, "Method not found: server/discover. The server behind speaks the handshake era."
            )
        return ImmediateReply(encode_result(encode(message.id), result))
