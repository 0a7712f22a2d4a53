"""Handle the messages of legacy clients (MCP 2025-03-26 to 2025-11-25): handshake, calls, notifications, answers to
servers' questions, the GET stream and DELETE, and the sessions of HTTP+SSE clients (MCP 2024-11-05)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.calls.client_request import IncomingCall, id_of, message_of
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.calls.live_session import LiveSession
from gateway.calls.session_event_streams import (
    STANDALONE,
    UNKNOWN,
    KeptCall,
    LostStreams,
    answer_lost,
    call_of_event,
    call_of_stream,
    end_lost,
    id_in_log,
)
from gateway.context.announced_context import Announcements
from gateway.context.session_facts import traced_error, with_context, with_meta, with_trace
from gateway.errors import (
    CANCELLED_BY_CLIENT,
    UPSTREAM_UNAVAILABLE,
    StartRefused,
    error_of,
    keyed_session_stays,
    session_unknown,
    stream_taken,
    unknown_event,
    unknown_level,
    unknown_resource,
)
from gateway.identity.request_context import RequestContext
from gateway.protocol.handshake import HandshakeRefused, limit_version, version_of, with_known_version
from gateway.protocol.methods import METHODS, OF_TASKS, RECORDED, REQUESTS
from gateway.protocol.params import meta_of, text_of
from gateway.protocol.reserved_meta import without_reserved, without_reserved_below, without_reserved_in
from gateway.protocol.tasks import asks_for_task
from gateway.relay.call import FoundSession, Intake
from gateway.relay.late_servers import Asker
from gateway.relay.reply_delivery import CallReply, StreamReply
from gateway.sessions.lifecycle import SessionLifecycle
from gateway.sessions.record_changes import SessionRecords
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from gateway.sessions.token_carriers import client_facts, explicit_token
from gateway.tasks.legacy_clients import LegacyTasks
from session_store import ClientFacts, Session, StoreUnavailable, UnknownEvent, UnwrittenEvent
from session_store.session import redact
from transports.background_tasks import Tasks
from transports.era import LEGACY, LOG_LEVELS
from transports.inbound_port import Answer, Carried, EventSource, HeaderList, Refused, Request
from transports.jsonrpc import (
    METHOD_NOT_FOUND,
    Message,
    Object,
    decode_id,
    decode_meta,
    decode_object,
    encode,
    encode_error,
    encode_result,
    error_code,
    splice,
)
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)

_NOT_AGAIN: Final = f"{UNKNOWN}. It is not made again: {{why}}"

ExchangeOf = Callable[[Resolved, Request, RequestContext], Exchange]
"""A function that makes the exchange (the state of a call) for a request in a session."""


class CallRecovery:
    """Continue event streams that an earlier gateway process has left unfinished (`LostStreams`): send the call of the
    stream again, and write its messages into the same stream. If several replicas try this at once, only one of them
    gets the stored request, so the call is repeated only once."""

    def __init__(self, intake: Intake, exchange_of: ExchangeOf) -> None:
        self._intake = intake
        self._events = intake.events
        self._exchange_of = exchange_of
        self._tasks = Tasks("repeated calls")

    async def go_on(
        self, stream: str, lost: LostStreams, resolved: Resolved, request: Request, who: RequestContext
    ) -> None:
        """Send the call of the unfinished stream `stream` again, in the background. `request` is the client's GET that
        resumes the stream, and `who` its sender. The repeated call gets the rights of `who`.

        Raises:
            Refused: 429, the session has no room for the call (`Intake.count_call`).
            StoreUnavailable: the store does not answer.
        """
        session_id = resolved.live.session.id
        try:
            await self._intake.count_call(resolved.live, request)
            # From now on, what the earlier process still writes is left out. If it has ended the stream before, it has
            # deleted the request.
            await self._events.append(session_id, stream, b"")
            kept = await self._events.take_request(session_id, stream)
        except BaseException:
            lost.mark_waiting(stream)
            raise
        self._tasks.spawn(self._answer(stream, lost, kept, resolved, request, who))

    async def _answer(
        self, stream: str, lost: LostStreams, kept: bytes, resolved: Resolved, request: Request, who: RequestContext
    ) -> None:
        session_id, call = resolved.live.session.id, call_of_stream(stream) or b"null"
        fields = {"session": redact(session_id), "correlation": who.correlation}
        try:
            if not kept:
                # The stream has ended, or an earlier attempt has taken the request, with an unknown outcome.
                if stream in await self._events.unfinished(session_id):
                    await end_lost(self._events, session_id, stream, call)
                return
            try:
                reply = await self._sent(stream, call, KeptCall.read(kept), resolved, request, who)
            except Exception as error:
                if not isinstance(error, Refused):
                    logger.exception("a call whose gateway is gone cannot be made again", extra=fields)
                why = str(error) if isinstance(error, Refused) else "the gateway failed"
                await end_lost(self._events, session_id, stream, call, _NOT_AGAIN.format(why=why))
                return
        except StoreUnavailable:
            lost.mark_waiting(stream)  # the next client that asks finds no request, so the stream is ended
            return
        logger.warning("a call is made again: its gateway is gone", extra=fields)
        await _record(reply)

    async def _sent(
        self, stream: str, call: bytes, kept: KeptCall, resolved: Resolved, request: Request, who: RequestContext
    ) -> CallReply:
        """Send a stored call again, with the checks of a new call, and return its reply. `call` is the client's request
        id as JSON, and `kept` the stored request. Raises the same errors as `Intake.accept_counted`."""
        meta = decode_meta(kept.params["_meta"]) if "_meta" in kept.params else None
        again = msgspec.structs.replace(
            request,
            endpoint=kept.endpoint,
            message=Message(jsonrpc="2.0", id=decode_id(msgspec.Raw(call)), method="tools/call"),
            params=kept.params,
            meta=meta if isinstance(meta, dict) else {},
            forwarded=None,
            again=True,
        )
        exchange = self._exchange_of(resolved, again, who)
        reply = await self._intake.accept_counted(IncomingCall(exchange, again, who, kept.params))
        assert isinstance(reply, CallReply)
        reply.go_on(stream)
        return reply


async def _record(reply: CallReply) -> None:
    """Store the messages of a repeated call for replay, up to and including its answer. Clients that follow the stream
    read the messages from the store."""
    try:
        while (frame := await reply.replies.next()) is not None:
            if reply.is_doubtful:
                frame = await reply.confirmed(frame)
            await reply.record([frame])
            if frame.final:
                return
    finally:
        reply.done()


@dataclass(eq=False, repr=False, kw_only=True)
class LegacyClients:
    """Handle the messages of legacy clients (MCP up to 2025-11-25)."""

    intake: Intake
    resolver: SessionResolver
    records: SessionRecords
    lifecycle: SessionLifecycle
    announcements: Announcements
    tasks: LegacyTasks
    result_meta: bool
    """True if each result describes its session in `_meta`."""

    def __post_init__(self) -> None:
        self._recovery = CallRecovery(self.intake, self.exchange)

    # -- calls (`gateway.relay.call.Clients`)

    async def session(self, request: Request, who: RequestContext) -> FoundSession | Answer:
        if message_of(request).method == "initialize":
            return await self._initialize(request, who)
        return FoundSession(await self.resolver.require(request, who), request, request.params)

    async def _initialize(self, request: Request, who: RequestContext) -> Answer:
        """Answer `initialize`: open or find the session, open its servers, and merge their results. If that fails, end
        the session, unless it existed before this request."""
        message, params = message_of(request), with_known_version(request.params)
        endpoint = self.intake.endpoints[request.endpoint]  # a reload takes no endpoint away
        info = msgspec.json.decode(params.get("clientInfo", b"null"))
        version = msgspec.json.decode(params["protocolVersion"])
        if "_meta" in params:
            params = params | {"_meta": msgspec.Raw(encode(without_reserved(meta_of(params))))}
        facts = client_facts(info, version, splice(encode(params)))
        resolved, said = await self.resolver.initialize(request, who, facts), Object()
        live = resolved.live
        with live.open_use():
            if self.resolver.attacher.announces_other(request, resolved):
                resolved, said = await self.resolver.attacher.apply_announced(request, who, resolved, anew=True)
            meta = meta_of(params)
            agreed = self.announcements.agreed(meta, resolved.context)
            if agreed is not meta:
                facts = client_facts(info, version, splice(encode(params | {"_meta": msgspec.Raw(encode(agreed))})))
            if agreed is not meta or not resolved.opened:
                await self.records.update(live, client=facts)
            try:
                result = limit_version(await endpoint.initialize(live, who.correlation), version)
                negotiated = version_of(result)
                result = self.tasks.requested.declared(result, negotiated)
                if negotiated != version:
                    await self.records.update(live, client=msgspec.structs.replace(facts, protocol_version=negotiated))
            except BaseException as error:
                if resolved.opened:
                    await self.lifecycle.end(live.session.id, "handshake refused")
                answer = _answer_to_failed(error, message, live, who.correlation)
                if answer is None:
                    raise
                return answer
        if said:
            result = encode(with_meta(decode_object(msgspec.Raw(result), "result"), said))
        headers = self.resolver.carriers.headers(live.session, request, cookie_held=resolved.cookie_held)
        return ImmediateReply(encode_result(encode(message.id), result), headers, live=live)

    async def answer(self, resolved: Resolved, request: Request, who: RequestContext) -> Answer | None:
        message = message_of(request)
        method = message.method
        if method == "ping":
            await self.intake.count_message(resolved.live)
            return ImmediateReply(encode_result(encode(message.id), b"{}"), live=resolved.live)
        if method in OF_TASKS:
            return await self.tasks.call(request, who, resolved)
        if method in RECORDED:
            await self._record(resolved, request)
        return None

    def exchange(self, resolved: Resolved | None, request: Request, who: RequestContext) -> Exchange:
        assert resolved is not None
        message, live = message_of(request), resolved.live
        shape = None
        if self.result_meta:

            def shape(exchange: Exchange, result: Object) -> Object:
                return with_trace(result, live.session, who.correlation)

        return Exchange(
            method=str(message.method),
            client_id=id_of(message),
            live=live,
            shape=shape,
            context=resolved.context,
            granted=who.claims,
        )

    def with_workspace_note(self, result: Object, said: Object) -> Object:
        return with_meta(result, said)

    def headers(self, resolved: Resolved, request: Request) -> HeaderList:
        return []  # a legacy client names its session in every request

    async def as_task(self, coming: IncomingCall) -> Answer | None:
        if asks_for_task(coming.request.params):
            return await self.tasks.begin(coming)
        if coming.exchange.method == "tools/list" and self.tasks.requested.has_offers:
            self.tasks.requested.offer(coming.exchange, coming.request.endpoint)
        return None

    # -- other messages

    async def _record(self, resolved: Resolved, request: Request) -> None:
        """Store in the session's record the log level that a request sets, or the subscription that it adds or removes.
        Each new link to a server sends the log level and the subscriptions again."""
        live, params, method = resolved.live, request.params, message_of(request).method
        if method == "logging/setLevel":
            if (level := text_of(params, "level")) not in LOG_LEVELS:
                raise unknown_level(LOG_LEVELS)
            await self.records.update(live, log_level=level)
        elif method == "resources/subscribe":
            uri = text_of(params, "uri")
            servers = self.intake.endpoints[request.endpoint].visible.to(resolved.context).values()
            if not any(upstream.permits(resolved.context, frozenset({uri})) for upstream in servers):
                raise unknown_resource(uri, LEGACY, method)
            await self.records.subscribe(live, uri)
        elif method == "resources/unsubscribe":
            await self.records.unsubscribe(live, text_of(params, "uri"))

    async def negotiated(self, request: Request, who: RequestContext) -> str:
        """Return the protocol version of the session that a request names. Raises `Refused` if the session is
        unknown."""
        return (await self.resolver.require(request, who)).live.session.client.protocol_version

    async def notify(self, request: Request, who: RequestContext) -> None:
        """Handle a client's notification in the gateway, or forward it to the servers. Ignore it if no server takes
        it."""
        message = message_of(request)
        resolved = await self.resolver.require(request, who)
        live = resolved.live
        live.client_sent(message)
        await self.intake.count_message(live)
        params = request.params
        method = str(message.method)
        if method in REQUESTS:
            # Policy decides on requests only. A server might execute a request without an id, and nobody would notice.
            logger.info("%s of a client has no id: it is ignored", method, extra={"session": redact(live.session.id)})
            return
        if method == "notifications/cancelled":
            for exchange in live.in_flight_as(decode_id(params.get("requestId", msgspec.Raw(b"null")))):
                reason = msgspec.json.decode(params.get("reason", b'""'))
                exchange.cancel(str(reason or "the client cancelled"), CANCELLED_BY_CLIENT)
            return
        if method == "notifications/progress" and _progress_of_question(live, params):
            return
        if method == "notifications/initialized":
            await self.records.update(live, initialized=True)
        meta = self.intake.meta(params, with_context(live.session, resolved.context), who.correlation)
        endpoint = self.intake.endpoints[request.endpoint]
        if method not in METHODS:
            asker = Asker(live, LEGACY, None, who.correlation)
            try:
                await endpoint.extensions.notify(asker, resolved.context, method, params, meta)
            except Refused as refused:
                # Clients expect that a notification which nobody understands is ignored (JSON-RPC 2.0 §4.1).
                if refused.code != METHOD_NOT_FOUND:
                    raise
                logger.info("a notification of a client is for no server: %s", refused)
            return
        await endpoint.notify(live, method, encode(params | {"_meta": msgspec.Raw(encode(meta))}), who.correlation)

    async def respond(self, request: Request, who: RequestContext) -> None:
        """Forward a client's response to the server whose question it answers. Ignore the response if no such question
        is pending."""
        live = (await self.resolver.require(request, who)).live
        live.client_sent(request.message)
        if not live.questions.answered(without_reserved_in(message_of(request))):
            logger.info("a client answered a request that is not pending")

    async def stream(self, request: Request, who: RequestContext, last_event_id: str | None) -> EventSource:
        """Open an event stream for a client's GET, and return its events. Without `last_event_id`, it is the session's
        standalone stream, whose messages belong to no call. With `last_event_id`, it is the stream that has the event
        of this id, from after that event."""
        resolved = await self.resolver.require(request, who)
        live = resolved.live
        await self.intake.count_message(live)
        stream: str = STANDALONE
        after: str | None = None
        if last_event_id is not None:
            if (lost := live.lost) is not None:
                await lost.wait_until_looked()
            stream, after = await self._resumed(live, lost, last_event_id)
            if lost is not None and lost.mark_continued(stream):
                await self._recovery.go_on(stream, lost, resolved, request, who)
        if stream == STANDALONE and live.open_streams:
            raise stream_taken()
        return StreamReply(live, stream, after, events=self.intake.events)

    async def _resumed(self, live: LiveSession, lost: LostStreams | None, last_event_id: str) -> tuple[str, str | None]:
        """Return the name of the stream that has the event `last_event_id`, and the id of the event after which to
        resume that stream (None: from its beginning). Raises `Refused` if the event is unknown."""
        event_id = id_in_log(last_event_id)
        try:
            return await self.intake.events.stream_of(live.session.id, event_id), event_id
        except UnwrittenEvent:
            call = call_of_event(last_event_id)
            if call is None:
                raise unknown_event() from None
            stream = None if lost is None else lost.newest_of(call)
            if stream is not None:  # the events that the client lacks have higher numbers
                return stream, event_id
            return await answer_lost(self.intake.events, live.session, call), None
        except UnknownEvent:
            raise unknown_event() from None

    async def end(self, request: Request, who: RequestContext) -> None:
        """End the session that a DELETE names. Raises `Refused`: 405, the client names its session by a key of its own
        choice; 404, the session is unknown."""
        live = (await self.resolver.require(request, who)).live
        if await self.resolver.is_named_by_key(live, request, who):
            raise keyed_session_stays()
        if not await self.lifecycle.end(live.session.id, "the client ended it"):
            raise session_unknown()

    # -- HTTP+SSE (MCP 2024-11-05). The transport itself (`transports.inbound.http_sse`) knows only tokens

    async def join(self, request: Request, who: RequestContext) -> Carried:
        """Return the session of a new HTTP+SSE event stream: the session that the request names, else a new one. Return
        a `Carried` without a token if the client's `initialize` will find the session, by its session key or by
        `session.reattach`.

        Raises:
            Refused: as `carried`, and as `SessionOpener.open`.
        """
        session, by_cookie = await self._carried(request, who)
        is_returned = session is not None
        if session is None:
            if self.resolver.carriers.has_key(request):
                return Carried()
            if "principal" in self.resolver.opener.settings.reattach and not who.principal.is_anonymous:
                return Carried()
            session = (await self.resolver.opener.open(request, who, ClientFacts(), None)).live.session
        headers = self.resolver.carriers.headers(session, request, cookie_held=by_cookie)
        return Carried(token=self.resolver.carriers.token(session), headers=headers, is_returned=is_returned)

    async def carried(self, request: Request, who: RequestContext) -> Carried:
        """Return the session that a message names which an HTTP+SSE client has posted. Return a `Carried` without a
        token if it names none.

        Raises:
            Refused: 404, a header names no session of this principal.
        """
        session, by_cookie = await self._carried(request, who)
        if session is None:
            return Carried()
        return Carried(token=self.resolver.carriers.token(session), is_returned=True, by_cookie=by_cookie)

    async def _carried(self, request: Request, who: RequestContext) -> tuple[Session | None, bool]:
        """Return the session that the request names, or None; and True if a cookie names the session. Ignore a cookie
        from another endpoint: clients send a cookie to all paths of the host."""
        if (token := explicit_token(request)) is not None:
            return await self.resolver.by_token(token, request.era, who.principal), False
        session = await self.resolver.by_cookie(request, who)
        if session is None or (session.endpoint, session.era) != (request.endpoint, LEGACY):
            return None, False
        return session, True

    async def leave(self, token: str) -> None:
        """Stop the server processes of a session whose event stream has ended, unless the session is in use. The
        session itself stays for a returning client."""
        session_id = self.resolver.carriers.tokens.verify(token)
        live = None if session_id is None else self.resolver.live.get(session_id)
        if live is not None and not live.is_busy:
            await live.stop_servers()


def _answer_to_failed(error: BaseException, message: Message, live: LiveSession, correlation: str) -> Answer | None:
    """Return the client's answer to an `initialize` that has failed with `error`. Return None for an error that the
    caller must raise again, such as a cancellation. Raises `Refused`: a server must not be started for this session."""
    match error:
        case HandshakeRefused():
            why, code = "the server has refused the handshake", error_code(error.error)
            failure = traced_error(splice(error.error), correlation)
        case StartRefused():
            raise error.refused from None
        case UpstreamUnavailable():
            why, code = str(error), UPSTREAM_UNAVAILABLE
            failure = encode(error_of(code, why, correlation))
        case _:
            return None
    return ImmediateReply(encode_error(encode(message.id), failure), error_code=code, live=live, why=why)


def _progress_of_question(live: LiveSession, params: Object) -> bool:
    """Forward a client's progress notification on a question to the server that has asked the question. The server gets
    its own progress token. Return False, and forward nothing, if the notification belongs to no open question."""
    asker = live.questions.asker(decode_id(params.get("progressToken", msgspec.Raw(b"null"))))
    if asker is None:
        return False
    conversation, token = asker
    cleaned = without_reserved_below(msgspec.Raw(encode(params | {"progressToken": token})))
    conversation.notify("notifications/progress", bytes(cleaned))
    return True
