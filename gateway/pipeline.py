"""bytes → inbound → identify → resume → decide → resolve → exchange → reply: the way of every message, in one place."""

import logging
from collections.abc import Mapping

import msgspec

from gateway.bridge.handshake import at_most, negotiable
from gateway.bridge.input_required import (
    INPUT_REQUIRED_METHODS,
    StateSeal,
    is_input_required,
    request_digest,
    request_meta,
    with_inner_state,
)
from gateway.context import (
    CONTEXT_KEY,
    SESSION_KEY,
    TRACE_KEY,
    context_meta,
    correlation_id,
    with_meta,
    without_our_keys,
)
from gateway.conversation import HandshakeRefused
from gateway.endpoint import Endpoint
from gateway.errors import UPSTREAM_UNAVAILABLE, session_unknown
from gateway.exchange import Exchange
from gateway.identity import Identity
from gateway.live import STANDALONE, LiveSession
from gateway.observe import bound
from gateway.reply import CallReply, ImmediateReply, StreamReply
from gateway.sessions import Resolved, Sessions, client_facts
from session_store import EventLog, Principal, UnknownEvent
from session_store.session import redact
from transports.base import Answer, Era, EventSource, Refused, ReplyQueue, Request, UpstreamUnavailable
from transports.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Message,
    Object,
    RequestId,
    decode_id,
    encode,
    encode_error,
    encode_result,
    error_code,
    splice,
)

__all__ = ["Pipeline"]

logger = logging.getLogger(__name__)

_SESSIONLESS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
"""Modern methods that open no session; a client that has one is served in it."""

_CACHEABLE = _SESSIONLESS | {"server/discover", "resources/read"}
"""Modern results that may be cached, so that nothing of the session may stand in them."""


class Pipeline:
    """Handles what inbound wires bring (`transports.base.Handler`)."""

    def __init__(
        self,
        *,
        identity: Identity,
        sessions: Sessions,
        endpoints: Mapping[str, Endpoint],
        events: EventLog,
        seal: StateSeal,
        result_meta: bool,
        max_exchanges: int,
    ) -> None:
        self._identity = identity
        self._sessions = sessions
        self._endpoints = endpoints
        self._events = events
        self._seal = seal
        self._result_meta = result_meta
        self._max_exchanges = max_exchanges

    # -- requests

    async def call(self, request: Request) -> Answer:
        principal = self._identity.authenticate(request.headers)
        correlation = correlation_id(request.headers, request.meta)
        with bound(correlation=correlation):
            if request.era is Era.MODERN:
                return await self._modern(request, principal, correlation)
            return await self._legacy(request, principal, correlation)

    async def _modern(self, request: Request, principal: Principal, correlation: str) -> Answer:
        message, endpoint = _message(request), self._endpoints[request.endpoint]
        method = str(message.method)
        if method == "server/discover":
            return await self._discover(message, endpoint)
        if not await endpoint.speaks_modern():
            raise Refused(
                400,
                -32022,
                "Unsupported protocol version",
                data={"supported": ["2025-11-25", "2025-06-18", "2025-03-26"], "requested": request.protocol_version},
            )
        params = message.params_object()
        digest = ""
        if method in INPUT_REQUIRED_METHODS:
            digest = request_digest(method, params)
        if digest and "requestState" in params and bytes(params["requestState"]) != b"null":
            opened = self._seal.open(params["requestState"], principal=principal, digest=digest)
            resolved: Resolved | None = await self._sessions.resume_by_id(opened.session_id, principal)
            params = with_inner_state(params, opened)
        elif method in _SESSIONLESS:
            resolved = await self._sessions.resume(request, principal)
        else:
            resolved = await self._sessions.resume_or_open(request, principal)
        live = None if resolved is None else resolved.live
        headers = [] if resolved is None else self._sessions.headers(resolved, request)

        def shape(exchange: Exchange, result: Object) -> Object:
            return self._shape_modern(exchange, result, principal, digest, correlation)

        exchange = Exchange(method=method, client_id=_id(message), live=live, replies=ReplyQueue(), shape=shape)
        return await self._relay(exchange, endpoint, Era.MODERN, params, headers, correlation)

    def _shape_modern(
        self, exchange: Exchange, result: Object, principal: Principal, digest: str, correlation: str
    ) -> Object:
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
        return with_meta(result, additions | self._trace(live, correlation))

    def _trace(self, live: LiveSession, correlation: str) -> Object:
        if not self._result_meta:
            return {}
        trace = {"session": redact(live.session.id), "correlation_id": correlation}
        return {TRACE_KEY: msgspec.Raw(encode(trace))}

    async def _discover(self, message: Message, endpoint: Endpoint) -> Answer:
        result = await endpoint.discover()
        if result is None:
            raise Refused(
                404, METHOD_NOT_FOUND, "Method not found: server/discover. The server behind speaks the handshake era."
            )
        return ImmediateReply(encode_result(encode(message.id), result))

    async def _legacy(self, request: Request, principal: Principal, correlation: str) -> Answer:
        message, endpoint = _message(request), self._endpoints[request.endpoint]
        if message.method == "initialize":
            return await self._initialize(request, principal, correlation)
        resolved = await self._sessions.require(request, principal)
        live = resolved.live
        if message.method == "ping":
            return ImmediateReply(encode_result(encode(message.id), b"{}"))
        params = message.params_object()
        await self._remember(live, str(message.method), params)
        shape = None
        if self._result_meta:

            def shape(exchange: Exchange, result: Object) -> Object:
                return with_meta(result, self._trace(live, correlation))

        exchange = Exchange(
            method=str(message.method), client_id=_id(message), live=live, replies=ReplyQueue(), shape=shape
        )
        return await self._relay(exchange, endpoint, Era.LEGACY, params, [], correlation)

    async def _relay(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        era: Era,
        params: Object,
        headers: list[tuple[bytes, bytes]],
        correlation: str,
    ) -> Answer:
        live = exchange.live
        if live is not None and live.busy >= self._max_exchanges:
            raise Refused(
                429, UPSTREAM_UNAVAILABLE, "Too many calls of this session are in flight.", headers={"Retry-After": "1"}
            )
        meta = without_our_keys(request_meta(params))
        if live is not None:
            meta = meta | {CONTEXT_KEY: context_meta(live.session, correlation)}
        events = self._events if era is Era.LEGACY else None
        reply = CallReply(exchange, headers, events=events, released=self._sessions.touch)
        try:
            await endpoint.relay(exchange, era, params, meta, correlation)
        except BaseException:
            await reply.done()
            raise
        return reply

    async def _initialize(self, request: Request, principal: Principal, correlation: str) -> Answer:
        message, endpoint = _message(request), self._endpoints[request.endpoint]
        params = negotiable(message.params_object())
        info = msgspec.json.decode(params.get("clientInfo", b"null"))
        version = msgspec.json.decode(params["protocolVersion"])
        kept = encode(params | {"_meta": msgspec.Raw(encode(without_our_keys(request_meta(params))))})
        facts = client_facts(info, version, splice(kept))
        resolved = await self._sessions.initialize(request, principal, facts)
        live = resolved.live
        if not resolved.opened:
            await self._sessions.update(live, client=facts)
        live.busy += 1
        try:
            result = await endpoint.initialize(live, correlation)
        except HandshakeRefused as error:
            await self._undo(resolved)
            return ImmediateReply(
                encode_error(encode(message.id), splice(error.error)), error_code=error_code(error.error)
            )
        except UpstreamUnavailable as error:
            await self._undo(resolved)
            failure = {"code": UPSTREAM_UNAVAILABLE, "message": str(error)}
            return ImmediateReply(encode_error(encode(message.id), failure), error_code=UPSTREAM_UNAVAILABLE)
        except BaseException:
            await self._undo(resolved)
            raise
        finally:
            live.busy -= 1
        await self._sessions.touch(live)
        result = at_most(result, version)
        return ImmediateReply(encode_result(encode(message.id), result), self._sessions.headers(resolved, request))

    async def _undo(self, resolved: Resolved) -> None:
        """A refused handshake leaves nothing behind."""
        if resolved.opened:
            await self._sessions.end(resolved.live.session.id, "handshake refused")

    async def _remember(self, live: LiveSession, method: str, params: Object) -> None:
        """Keep what a new link has to be told again: log level and subscriptions."""
        session = live.session
        if method == "logging/setLevel":
            await self._sessions.update(live, log_level=_text(params, "level"))
        elif method == "resources/subscribe":
            uris = {*session.subscriptions, _text(params, "uri")}
            await self._sessions.update(live, subscriptions=tuple(sorted(uris))[:1_000])
        elif method == "resources/unsubscribe":
            uris = {*session.subscriptions} - {_text(params, "uri")}
            await self._sessions.update(live, subscriptions=tuple(sorted(uris)))

    # -- everything else a client may send

    async def notify(self, request: Request) -> None:
        principal = self._identity.authenticate(request.headers)
        if request.era is Era.MODERN:
            return  # MCP 2026-07-28 has no client notifications over HTTP: accepted, and without effect
        message = _message(request)
        live = (await self._sessions.require(request, principal)).live
        correlation = correlation_id(request.headers, request.meta)
        params = message.params_object()
        method = str(message.method)
        if method == "notifications/cancelled":
            self._cancel(live, params)
            return
        if method == "notifications/progress" and _progress_of_question(live, params):
            return
        if method == "notifications/initialized":
            await self._sessions.update(live, initialized=True)
        meta = without_our_keys(request_meta(params)) | {CONTEXT_KEY: context_meta(live.session, correlation)}
        body = encode(params | {"_meta": msgspec.Raw(encode(meta))})
        self._endpoints[request.endpoint].notify(live, Era.LEGACY, method, body, correlation)

    @staticmethod
    def _cancel(live: LiveSession, params: Object) -> None:
        exchange = live.exchanges.get(decode_id(params.get("requestId", msgspec.Raw(b"null"))))
        if exchange is not None and exchange.conversation is not None:
            reason = msgspec.json.decode(params.get("reason", b'""'))
            exchange.conversation.cancel(exchange, str(reason or "the client cancelled"))

    async def respond(self, request: Request) -> None:
        principal = self._identity.authenticate(request.headers)
        live = (await self._sessions.require(request, principal)).live
        if not live.answered(_message(request)):
            logger.info("a client answered a request that nobody waits for")

    async def stream(self, request: Request, last_event_id: str | None) -> EventSource:
        principal = self._identity.authenticate(request.headers)
        live = (await self._sessions.require(request, principal)).live
        stream = STANDALONE
        if last_event_id is not None:
            try:
                stream = await self._events.stream_of(live.session.id, last_event_id)
            except UnknownEvent:
                raise Refused(
                    404, INVALID_PARAMS, "Unknown Last-Event-ID: it is not of this session, or too old to resume from."
                ) from None
        if stream == STANDALONE and live.listeners:
            raise Refused(409, INVALID_PARAMS, "This session has a GET stream already.")
        return StreamReply(live, stream, last_event_id, events=self._events, released=self._sessions.touch)

    async def end(self, request: Request) -> None:
        principal = self._identity.authenticate(request.headers)
        live = (await self._sessions.require(request, principal)).live
        if not await self._sessions.end(live.session.id, "the client ended it"):
            raise session_unknown()

    async def header_schema(self, endpoint: str, tool: str) -> object:
        """The input schema whose annotated arguments a modern `tools/call` mirrors in headers, or None."""
        return await self._endpoints[endpoint].header_schema(tool)


def _message(request: Request) -> Message:
    assert request.message is not None
    return request.message


def _id(message: Message) -> RequestId:
    assert isinstance(message.id, int | str)
    return message.id


def _text(params: Object, key: str) -> str:
    try:
        return msgspec.json.decode(params.get(key, b"null"), type=str)
    except msgspec.MsgspecError:
        raise Refused(200, INVALID_PARAMS, f"params.{key} must be a string") from None


def _progress_of_question(live: LiveSession, params: Object) -> bool:
    """Progress on a server's request goes to the one server that asked, under its own token."""
    asker = live.asker(decode_id(params.get("progressToken", msgspec.Raw(b"null"))))
    if asker is None:
        return False
    conversation, token = asker
    conversation.notify("notifications/progress", encode(params | {"progressToken": token}))
    return True
