"""Serve a call from request to answer: find its sender, session and server, check it, send it, and return the answer.

A request comes in at `Calls.call`. Read this file from there downwards:

1. Who: `Senders.who` authenticates the client and counts the request against the client's rate limit.
2. Which session: `Calls._answer` lets the `Clients` of the client's era find or open it. `Clients.session` and `answer`
   answer what needs no server: `server/discover`, `ping`, requests about tasks. If a `tools/call` may become a task,
   `as_task` runs the steps below inside the reply of `gateway.tasks`, which can answer before they end.
3. Is there room: `Intake.accept` applies the limits of the session, and begins the reply.
4. Which server: `relay` finds the server that the call names, or answers the call for all servers.
5. May it: `_send` asks `gateway.relay.policy_admission`, which requests the server's lists if its decision needs them.
6. Send: `send_call` (`gateway.relay.requests_to_server`) makes the request for the server, in the form of the server's
   era, and sends it in the session's conversation with the server.
7. Answer: the link passes each message to `Conversation.message`, which finds the call by its request id.
   `Exchange.finish` has a bridge translate it; `finish_translated` gives it the client's id and form, and pushes it to
   the reply (`gateway.relay.reply_delivery`). The wire sends it, unless another replica owns the session by now
   (`CallReply.confirmed`), and calls `done`. `Intake` answers a call that cannot be sent.

A step that every call needs is added here, once. Calls that repeat an earlier one skip these steps while the earlier
decision is valid (`gateway.relay.fast_path`). Preparing a fast path does not change the present call.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from gateway.calls.client_request import Call, IncomingCall, message_of
from gateway.calls.consent_questions import refuse_or_ask
from gateway.calls.event_log import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.immediate_reply import ImmediateReply
from gateway.calls.link_manager import UNREACHED
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.messages_for_operators import MessageRecorder
from gateway.calls.session_event_streams import KEPT_BYTES, KeptCall
from gateway.cluster.ownership import Cluster
from gateway.config.limits import LimitSettings
from gateway.context.announced_context import Announcements
from gateway.context.session_facts import CONTEXT_KEY, SessionFacts, correlation_id, with_context
from gateway.errors import (
    OUTCOME_UNKNOWN,
    UPSTREAM_UNAVAILABLE,
    ConsentRefusal,
    InvalidArguments,
    StartRefused,
    cancelled_by_client,
    outcome_unknown,
    session_unknown,
    store_refused,
    too_many_exchanges,
    too_much_in_flight,
    unknown_method,
    unknown_tool,
)
from gateway.identity.authenticate import Authenticated, Authenticator
from gateway.identity.request_context import RequestContext
from gateway.observability.audit import Audit
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.observability.request_log import CORRELATION_HEADER, RequestLog
from gateway.observability.request_outcomes import OK, Outcome
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.merged_lists import SEPARATOR
from gateway.protocol.methods import LISTS, METHODS, NO_REQUESTS
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import without_reserved
from gateway.protocol.result_translation import tool_error
from gateway.relay.audited_refusals import record_refused_call, record_refused_request
from gateway.relay.endpoint_servers import EndpointServers
from gateway.relay.fast_path import CallDecision, FastPaths
from gateway.relay.frame_template import Prepared
from gateway.relay.policy_admission import AdmittedTool, CallTarget, checked
from gateway.relay.reply_delivery import CallReply
from gateway.relay.requests_to_server import answer_with, cache_key_of, for_server, fresh, send_call, waits
from gateway.relay.subscriptions import open_stream
from gateway.sessions.resolve import SessionResolver
from gateway.sessions.session_attaching import Resolved
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from session_store import Session, StoreError
from session_store.session import redact
from transports.era import LEGACY, Era
from transports.inbound.unauthenticated_limits import SMALL_BODY_BYTES, Limited
from transports.inbound_port import Answer, HeaderList, Refused, Request
from transports.jsonrpc import Message, Object, encode
from transports.upstream_port import LinkClosed, UpstreamUnavailable
from transports.work_steps import is_large, let_others_run

_UNKNOWN: Final = (
    "The gateway that served this session died before it answered; whether the call took effect is unknown"
)


# -- who


class Senders:
    """Authenticate the senders of requests, and count their requests. Record each refusal in the audit trail."""

    def __init__(self, *, identity: Authenticator, rates: RateLimits, audit: Audit, log: RequestLog) -> None:
        self._identity = identity
        self._rates = rates
        self._audit = audit
        self._tracing = log.tracing

    async def who(self, request: Request) -> RequestContext:
        """Authenticate the sender of a request, count the request, and return the sender. For a forwarded request, the
        other replica has done both. Set the correlation id and the client's address for later log lines.

        Raises:
            Refused: 401, the credential is not valid; 429, there were too many requests.
        """
        CLIENT.set(request.client)
        traced = self._tracing if request.message is not None and request.message.is_request else None
        correlation = _correlation_of(request) if traced is None else traced.arrived(request).correlation
        CORRELATION.set(correlation)
        if request.forwarded is not None:  # the sending replica has authenticated and counted it
            return RequestContext(request.forwarded.principal, request.forwarded.granted, correlation, math.inf)
        who = None
        try:
            who = await self._authenticated(request)
            await self._rates.count_message(who.principal, request.client)
        except Refused as refused:
            self._record(request, who, refused)
            raise
        return RequestContext(who.principal, who.granted, correlation, who.until)

    async def check(self, request: Request) -> None:
        """Authenticate the sender of a request before its body is read. Count the body's size against the sender's rate
        limit. Raises the same errors as `who`."""
        who = None
        try:
            who = await self._authenticated(request)
            await self._rates.count_body(who.principal, request.client, request.body_bytes)
        except Refused as refused:
            CLIENT.set(request.client)
            CORRELATION.set(_correlation_of(request))
            self._record(request, who, refused)
            raise

    async def _authenticated(self, request: Request) -> Authenticated:
        who: Authenticated | None = request.vouched_for or self._identity.known(request.headers, request.peer)
        return await self._identity.verify(request.headers, request.peer) if who is None else who

    def _record(self, request: Request, who: Authenticated | None, refused: Refused) -> None:
        principal = "" if who is None else str(who.principal)
        self._audit.refused(refused, {"era": request.era, "principal": principal}, why=str(refused))


def _correlation_of(request: Request) -> str:
    """Return the correlation id of a request: the one that another replica has forwarded, else the one from the
    client's trace, else a new one."""
    sent = "" if request.forwarded is None else request.headers.get(CORRELATION_HEADER, "")
    return sent or correlation_id(request.headers, request.meta)


# -- which session


class FoundSession(NamedTuple):
    """What `Clients.session` returns for a request that it has not answered: the session (`resolved`; None: it needs
    none), the client's request, maybe changed, and the `params` to send if a server has to answer."""

    resolved: Resolved | None
    request: Request
    params: Object


class Clients(Protocol):
    """Handle clients of one era (implemented in `gateway.relay.legacy_clients` and `gateway.relay.modern_clients`)."""

    async def session(self, request: Request, who: RequestContext) -> FoundSession | Answer:
        """Find or open the session of a request, and return it. Return an answer instead if this step can answer the
        request already, such as `initialize` or `server/discover`."""

    async def answer(self, resolved: Resolved, request: Request, who: RequestContext) -> Answer | None:
        """Answer a request that the gateway handles itself, such as `ping`. Return None if a server has to answer."""

    def exchange(self, resolved: Resolved | None, request: Request, who: RequestContext) -> Exchange:
        """Return a new exchange for a call. The exchange translates the server's result for this client."""

    def with_workspace_note(self, result: Object, said: Object) -> Object:
        """Return `result` with `said` added to its `_meta`: what became of the workspace that the request announced."""

    def headers(self, resolved: Resolved, request: Request) -> HeaderList:
        """Return the response headers with a modern client's session token. Empty for legacy clients, which know it."""

    async def as_task(self, coming: IncomingCall) -> Answer | None:
        """If a call may become an MCP task, send it and return its reply. Otherwise send nothing, and return None."""


@dataclass(eq=False, repr=False, kw_only=True)
class Calls:
    """Answer the requests of all clients: legacy ones (MCP up to 2025-11-25) and modern ones (MCP 2026-07-28)."""

    senders: Senders
    clients: Mapping[Era, Clients]
    resolver: SessionResolver
    intake: "Intake"
    audit: Audit
    log: RequestLog
    watches: Iterable[MessageRecorder] = ()

    async def call(self, request: Request) -> Answer:
        """Answer a client's request (`transports.inbound_port.Handler`).

        Raises:
            Refused: the request is refused, and the refusal is recorded.
            OwnedByPeer: another replica owns its session.
        """
        who = None
        try:
            who = await self.senders.who(request)
            method = str(message_of(request).method)
            if method in NO_REQUESTS[request.era]:  # no server gets it, so policy has no rule for it
                raise unknown_method(method, request.era)
            answer = await self._answer(request, who)
        except (StoreError, Refused) as error:
            raise self._refusal(request, who, error) from None
        if isinstance(answer, ImmediateReply):
            outcome = OK if answer.error_code is None else Outcome.error(answer.error_code)
            self.log.answered(request, who.principal, outcome, answer.log_facts, answer.why)
        return answer

    async def _answer(self, request: Request, who: RequestContext) -> Answer:
        """Find the session of a request and send the request to its server. Return the reply, which brings the answer
        later; or the gateway's own answer if no server is needed."""
        clients = self.clients[request.era]
        found = await clients.session(request, who)
        if not isinstance(found, FoundSession):
            return found
        (resolved, request, params), said = found, None
        headers: HeaderList = []
        if resolved is not None:
            resolved.live.client_sent(request.message)
            if self.resolver.attacher.announces_other(request, resolved):
                resolved, said = await self.resolver.attacher.apply_announced(request, who, resolved)
            if (answer := await clients.answer(resolved, request, who)) is not None:
                return answer
            headers = clients.headers(resolved, request)
        exchange = clients.exchange(resolved, request, who)
        if said is not None:
            exchange.filter_result(lambda _, result: clients.with_workspace_note(result, said))
        coming = IncomingCall(exchange, request, who, params, headers)
        try:
            if (answer := await clients.as_task(coming)) is not None:
                return answer
            # The result of a call that announces a workspace tells what became of it, so it is unlike other results.
            if said is None and resolved is not None and request.offer is not None:
                like = functools.partial(clients.exchange, resolved)
                request.offer.prepare(CallDecision(resolved, resolved.live.version, headers, like, self.resolver))
            return await self.intake.accept(coming)
        except Refused as refused:
            raise refused if resolved is None else _in_session(refused, resolved, headers) from None

    def _refusal(self, request: Request, who: RequestContext | None, error: StoreError | Refused) -> Refused:
        """Log and audit a refused request, and return the error for its client, also for an error of the store. For a
        request that was sent once before (`request.again`), the returned error is that the outcome is unknown."""
        refused = store_refused(error) if isinstance(error, StoreError) else error
        if who is not None:
            record_refused_request(self.audit, request, who, refused)
        if request.again:
            refused = outcome_unknown()
        refused.of_request(CORRELATION.get())
        for frames in self.watches:
            frames.refused(message_of(request), refused)
        self.log.refused(request, None if who is None else who.principal, refused)
        return refused


def _in_session(refused: Refused, resolved: Resolved, headers: HeaderList) -> Refused:
    """Add the session's id, for logs, to a refusal, and return the refusal. If the request has opened the session, add
    the headers with the session's token, so that the client does not open another session."""
    refused.about({"session": redact(resolved.live.session.id), **refused.log_facts})
    if not resolved.opened:
        return refused
    return refused.with_headers({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})


# -- is there room


class Intake:
    """Admit calls after their session is found: apply limits, begin the replies, and send the calls to servers."""

    def __init__(
        self,
        *,
        endpoints: Mapping[str, EndpointServers],
        events: EventWriter,
        limits: LimitSettings,
        rates: RateLimits,
        log: RequestLog,
        facts: SessionFacts,
        announcements: Announcements,
        cluster: Cluster | None = None,
    ) -> None:
        self.endpoints = endpoints
        self._cluster = cluster
        self._rates = rates
        self._log = log
        self._context_meta = facts.meta
        self._agreed = announcements.agreed
        self.events = events
        self.replace(limits)
        self._max_bytes = limits.in_flight_bytes
        self._paths = FastPaths(self, rates, log, cluster)

    def replace(self, limits: LimitSettings) -> None:
        """Apply the limit of calls in flight per session from these settings."""
        self.max_exchanges = limits.exchanges

    async def accept(self, coming: IncomingCall, *, server: str = "") -> Answer:
        """Count a call against the limits of its session, and send it to its server. Return the reply, whose response
        headers are `coming.headers`. `server` is the name of the server; if empty, the params of the call determine the
        server.

        Raises:
            Refused: as `count_call`; 429, too many or too large calls are in flight; the call names nothing that
                exists.
        """
        live = live_session_of(coming.exchange)
        if live is not None:
            await self.count_call(live, coming.request, coming.exchange)
        return await self.accept_counted(coming, server)

    async def count_call(self, live: LiveSession, request: Request, exchange: Exchange | None = None) -> None:
        """Count a call against its session's rate limit; at the limit, wait. Raises `Refused`: 429, too many or too
        large calls are in flight, or the wait is too long; 404, the session has ended; or the client has cancelled the
        call."""
        with self.in_flight(live, request, exchange):
            await self._turn(live, request.body_bytes)
        if exchange is not None and exchange.is_over:
            raise cancelled_by_client()

    async def count_message(self, live: LiveSession) -> None:
        """Count a notification or a response of the client against its session's rate limit; at the limit, wait. Raises
        `Refused`: 429, there are too many messages; 404, the session has ended meanwhile."""
        with live.open_use():
            await self._turn(live)

    async def _turn(self, live: LiveSession, size: int = 0) -> None:
        await self._rates.count_call(live.session.id, size)
        if live.ended and not live.is_elsewhere:
            raise session_unknown()

    @contextlib.contextmanager
    def in_flight(self, live: LiveSession, request: Request, exchange: Exchange | None = None) -> Iterator[None]:
        """Count a request as in flight in its session during the `with` block. If `exchange` is given, the client can
        cancel the request during the block. Raises `Refused` (429): too many or too large calls are in flight."""
        with live.open_use(body_bytes=self._room_for(live, request.body_bytes)):
            if exchange is None:
                yield
                return
            live.exchange_begins(exchange)
            try:
                yield
            finally:
                live.exchange_ended(exchange)

    def _room_for(self, live: LiveSession, size: int) -> int:
        """Return how many bytes a request with a body of `size` bytes adds to the bytes in flight of its session: 0 if
        the body is small. Raises `Refused` (429): too many calls, or too many bytes, are in flight in the session."""
        if live.busy >= self.max_exchanges:
            raise too_many_exchanges()
        if size <= SMALL_BODY_BYTES:
            return 0
        if live.body_bytes and live.body_bytes + size > self._max_bytes:
            self._log.metrics.limited[Limited.IN_FLIGHT] += 1
            raise too_much_in_flight("this session")
        return size

    async def accept_counted(self, coming: IncomingCall, server: str = "") -> Answer:
        """Send a call to its server, as `accept` does, but without counting it: `count_call` has done that."""
        exchange, request, who, params = coming.exchange, coming.request, coming.who, coming.params
        reply, meta = self.begin(coming)
        check, correlation = request.check_mirrored, who.correlation
        sent = None if request.era is LEGACY else request.headers
        call = Call(exchange, request.era, params, meta, correlation, check, server, who.principal, sent)
        try:
            if request.again:
                await self._repeat(request, call)
            else:
                target, offer = await self._agree_and_relay(request, call), request.offer
                if target is not None and offer is not None and offer.decision is not None:
                    offer.make(functools.partial(self._paths.of, offer.decision, target, who, request.params))
        except BaseException as raised:
            error = raised.refused if isinstance(raised, StartRefused) else raised
            if not self._answer_failure(call, error):
                if isinstance(error, Refused) and reply.live is not None:
                    error.about({"session": redact(reply.live.session.id)})
                self._log.forget(exchange)
                reply.release()
                raise error from raised.__cause__
        return reply

    def begin(self, coming: IncomingCall) -> tuple[CallReply, Object]:
        """Begin the reply to a call that `count_call` has counted. Return the reply, and the `_meta` for the server.

        The caller must answer the exchange or release the reply. The call of a repeatable tool is stored with its first
        event, so that another process can repeat the call once if this process dies.

        Raises:
            Refused: 429, as `accept`.
        """
        exchange, request, correlation = coming.exchange, coming.request, coming.who.correlation
        live = live_session_of(exchange)
        size = 0 if live is None else self._room_for(live, request.body_bytes)  # no await from here to `CallReply`
        meta = self._log.begin(exchange, request, self._meta(coming.params, exchange, correlation), correlation)
        may_repeat = exchange.method == "tools/call" and not request.again and request.body_bytes <= KEPT_BYTES
        reply = CallReply(
            exchange,
            live,
            coming.headers,
            events=self.events if request.era is LEGACY else None,
            cluster=self._cluster,
            body_bytes=size,
            kept=functools.partial(self._kept, exchange, request) if may_repeat else None,
        )
        return reply, meta

    def attach(self, exchange: Exchange, headers: HeaderList, request: Request, correlation: str) -> Answer:
        """Return a new reply for a suspended call, after its client has answered the server's questions in a new
        request (`request`)."""
        self._log.begin_again(exchange, request, correlation)
        return CallReply(exchange, live_session_of(exchange), headers, events=None, cluster=self._cluster)

    def _kept(self, exchange: Exchange, request: Request) -> bytes:
        """Encode a tool call for storage, so that another process can repeat the call if this process dies. Return
        empty bytes if the call is too large to store, or must not be repeated."""
        endpoint = self.endpoints[request.endpoint]
        if not endpoint.called(exchange, request.era, request.params).is_repeatable:
            return b""
        kept = encode(KeptCall(request.endpoint, request.params))
        return kept if len(kept) <= KEPT_BYTES else b""

    def meta(self, params: Object, session: Session, correlation: str) -> Object:
        """Return the `_meta` for a server: the facts of the session, and the entries of the client's own `_meta` in
        `params`. Leave out the client's entries with reserved keys, and a workspace that the client announces if it
        differs from the session's. `session` must have the context of the request."""
        facts = {CONTEXT_KEY: self._context_meta(session, correlation)}
        return self._agreed(without_reserved(meta_of(params)) | facts, session.context)

    def _meta(self, params: Object, exchange: Exchange, correlation: str) -> Object:
        live = live_session_of(exchange)
        if live is None:
            return self._agreed(without_reserved(meta_of(params)), exchange.context)
        return self.meta(params, with_context(live.session, exchange.context), correlation)

    async def _agree_and_relay(self, request: Request, call: Call) -> CallTarget | None:
        """Send a call to its server. If another replica has forwarded the call, and was told that the call has to wait,
        first get the consent of that replica. Returns and raises the same as `relay`."""
        if request.forwarded is not None:
            await request.forwarded.before_sending()
        return await relay(self.endpoints[request.endpoint], call)

    async def _repeat(self, request: Request, call: Call) -> None:
        """Repeat a call that may have been executed before, if its tool allows that; else answer with an error."""
        if call.live is not None and (lost := call.live.lost) is not None:
            # Else a client that resumes one of the lost streams would have the call repeated once more.
            await lost.wait_until_looked()
            await lost.end(self.events, call.live.session.id, call.exchange.client_id)
        is_repeatable = False
        with contextlib.suppress(*UNREACHED):
            is_repeatable = await self.endpoints[request.endpoint].is_repeatable(call)
        if not is_repeatable:
            call.exchange.fail(OUTCOME_UNKNOWN, _UNKNOWN)
            return
        try:
            await self._agree_and_relay(request, call)
        except UpstreamUnavailable as error:
            call.exchange.fail(OUTCOME_UNKNOWN, f"{_UNKNOWN} It could not be made again: {error}")

    def _answer_failure(self, call: Call, error: BaseException) -> bool:
        """Answer a call with an error, because it could not be sent: `error` says why. Return False, without an answer,
        if the caller must raise `error` instead."""
        match error:
            case ConsentRefusal():
                refuse_or_ask(call.exchange, error, call.params)
            case UpstreamUnavailable():
                call.exchange.fail(UPSTREAM_UNAVAILABLE, str(error))
            case HandshakeRefused():
                call.exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))
            case LinkClosed():
                call.exchange.fail(OUTCOME_UNKNOWN, str(error))
            case InvalidArguments():
                self._log.metrics.counters["argument_errors"][error.fault] += 1
                call.exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(tool_error(call.era, str(error)))))
            case _:
                return False
        return True

    # -- for the fast path (`gateway.relay.fast_path.GeneralWay`)

    def may_take_fast_path(self, request: Request, target: CallTarget) -> bool:
        """Return True if later calls like this request may skip most steps (the fast path): tracing needs no more of
        them than `traceparent`, and they always go to the same server (`EndpointServers.has_fixed_server`)."""
        return self._log.may_be_unsampled(request) and self.endpoints[request.endpoint].has_fixed_server(target)

    def prepared(
        self, decision: CallDecision, target: CallTarget, request: Request, who: RequestContext, params: Object
    ) -> Prepared:
        """Build the request for the server of a later call with these params, by the decision on an earlier call."""
        exchange = decision.exchange_for(request, who)
        conversation, upstream = target.held_conversation, target.upstream
        assert conversation is not None
        meta = self._meta(request.params, exchange, who.correlation)
        meta, trace = self._log.meta_with_unsampled_trace(meta, request, who.correlation)
        sent = None if request.era is LEGACY else request.headers
        call = Call(exchange, request.era, params, meta, who.correlation, None, "", who.principal, sent)
        call = self.endpoints[request.endpoint].merged.with_own_name(upstream, call, target.named)
        params, meta = for_server(upstream, conversation, call, None)
        return Prepared(exchange, params, meta, waits(upstream, conversation, call), trace)


# -- which server


async def relay(endpoint: EndpointServers, call: Call) -> CallTarget | None:
    """Send a call to its server, or to all servers that it concerns. Return the server and the policy decision if they
    are valid for later calls of the same tool, too; else None.

    Raises:
        Refused: the call names something that the session does not see, or its arguments are invalid.
        UpstreamUnavailable, HandshakeRefused, LinkClosed: the server cannot be reached.
    """
    seen, only, servers = endpoint.visible.to(call.exchange.context), endpoint.visible.only, endpoint.merged
    method, named = METHODS.get(call.method), None
    if method is None:
        upstream = await endpoint.extensions.server_for(call)
    elif call.exchange.is_subscription:
        lister, send = servers.resources.lister, functools.partial(_send, endpoint)
        await open_stream(seen, only, call, endpoint.late, lister, send)
        return None
    elif only is not None and only.name in seen:
        upstream = only
    elif call.server in seen:
        upstream = seen[call.server]
    elif method.name == "tools/call":
        upstream, named = servers.server_by_name(call)
        call = servers.with_own_name(upstream, call, named)
    elif method.name in LISTS:
        await servers.merged_list(call)
        return None
    elif method.for_all:
        await servers.send_to_all(call)
        return None
    elif method.named == "uri":
        upstream, call, answer = await servers.resources.server_for(call)
        if answer is not None and answer_with(call, answer):
            return None
    else:
        upstream, call = await servers.server_for(call)
    return await _send(endpoint, upstream, call, named)


# -- may it, and in which conversation


async def _send(
    endpoint: EndpointServers, upstream: ConfiguredUpstream, call: Call, named: msgspec.Raw | None = None
) -> CallTarget | None:
    """Send a call to the server `upstream`, if policy admits the call. First request the server's lists, if the
    decision depends on them. `named` is the server's own name of the tool; None if the client uses the same name.
    Returns and raises the same as `relay`."""
    exchange, settings = call.exchange, upstream.settings
    try:
        if settings.handles:
            params = await endpoint.handles.handle(call, (await upstream.facts()).tools)
            if params is None:
                return None
            call = call.with_params(params)
        admitted = await endpoint.admission.admit(upstream, call)
        call = await checked(admitted, call)
    except Refused as refused:
        record_refused_call(endpoint.admission.audit, upstream.name, call, refused)
        if named is not None and refused.reason == "unknown_tool":  # the client knows the tool by its public name
            public = f"{upstream.name}{SEPARATOR}{msgspec.json.decode(named)}"
            raise unknown_tool(public).recorded() from None
        raise
    if is_large(call.params):
        await let_others_run()
    await upstream.era_for(call.era)  # `cache_key_of` needs the era to be known
    cache_key = cache_key_of(upstream, call, call.method, call.params)
    cached = None if cache_key is None else fresh(upstream, call, cache_key)
    conversation = None if cached is not None else await upstream.conversation_for(call)
    if (keep_visible := endpoint.admission.result_filter(upstream, conversation, call.method)) is not None:
        exchange.filter_result(keep_visible)
    if cached is not None:
        exchange.answered_from(cache=True)
        answer_with(call, cached)
    elif conversation is not None:
        await send_call(upstream, conversation, call, cache_key)
        if isinstance(admitted, AdmittedTool) and not (settings.shared or settings.handles or admitted.is_changed):
            return CallTarget(upstream, conversation, admitted, named)
    return None
