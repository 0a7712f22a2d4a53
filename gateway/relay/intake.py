"""Accepts the calls of clients: applies limits, adds the context of the session, and sends them to their endpoint."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gateway.calls.call import Call
from gateway.calls.event_log import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession, live_session_of
from gateway.calls.streams import KEPT_BYTES, KeptCall
from gateway.cluster.ownership import Cluster
from gateway.config.limits import LimitSettings
from gateway.context.client_workspace import Announcements
from gateway.context.facts import CONTEXT_KEY, SessionFacts, with_context
from gateway.errors import (
    OUTCOME_UNKNOWN,
    UPSTREAM_UNAVAILABLE,
    InvalidArguments,
    cancelled_by_client,
    too_many_exchanges,
    too_much_in_flight,
)
from gateway.identity.request_context import RequestContext
from gateway.observability.request_log import RequestLog
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.params import meta_of
from gateway.protocol.reserved_meta import without_reserved
from gateway.protocol.results import tool_error
from gateway.relay.admission import Route
from gateway.relay.endpoint import Endpoint
from gateway.relay.fast_path import Decided, FastPaths
from gateway.relay.frame_form import Prepared
from gateway.relay.replies import CallReply
from session_store import Session
from session_store.session import redact
from transports.era import LEGACY
from transports.inbound.limits import SMALL_BODY_BYTES, Limited
from transports.inbound_port import Answer, Refused, Request
from transports.jsonrpc import Message, Object, encode
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["Intake"]

Headers = list[tuple[bytes, bytes]]

_UNKNOWN: Final = (
    "The gateway that served this session died before it answered; whether the call took effect is unknown"
)


class Intake:
    """Accepts the calls of both eras, for all endpoints."""

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Endpoint],
        events: EventWriter,
        limits: LimitSettings,
        rates: RateLimits,
        watching: RequestLog,
        facts: SessionFacts,
        announcements: Announcements,
        cluster: Cluster | None = None,
    ) -> None:
        self.endpoints = endpoints
        self._cluster = cluster
        self._rates = rates
        self._watching = watching
        self._context_meta = facts.meta
        self._agreed = announcements.agreed
        self._events = events
        self.max_exchanges = limits.exchanges
        self._max_bytes = limits.in_flight_bytes
        self._paths = FastPaths(self, rates, watching, cluster)

    async def accept(
        self,
        exchange: Exchange,
        request: Request,
        who: RequestContext,
        params: Object,
        headers: Headers,
        *,
        server: str = "",
    ) -> Answer:
        """Send a call to its server. The outcome comes through the answer. `headers` are sent to the client. `server`
        is that of the call, empty if it is to be found by what the call names.

        Raises:
            Refused: 429, too many calls of the session are in flight, or too large ones; or the call names nothing that
                exists.
        """
        live = live_session_of(exchange)
        if live is not None:
            await self._count(live, request, exchange)
        return await self.accept_counted(exchange, request, who, params, headers, server)

    async def admit(self, live: LiveSession, request: Request) -> None:
        """Count a call for which something is made before `accept_counted` gets it. Raises `Refused`: 429, as
        `accept`."""
        await self._count(live, request)

    async def _count(self, live: LiveSession, request: Request, exchange: Exchange | None = None) -> None:
        """Count a call, once that is its turn. Raises `Refused`: 429, as `accept`; its client has cancelled it."""
        with self.waiting(live, request, exchange):
            await self._rates.call(live.session.id, request.body_bytes)
        if exchange is not None and exchange.is_over:
            raise cancelled_by_client()

    @contextlib.contextmanager
    def waiting(self, live: LiveSession, request: Request, exchange: Exchange | None = None) -> Iterator[None]:
        """Around what a request waits for before it is accepted or answered: it is in flight already. With `exchange`
        its client can cancel it meanwhile. Raises `Refused`: 429, as `accept`."""
        with live.in_use(held=self._room_for(live, request.body_bytes)):
            if exchange is None:
                yield
                return
            live.exchange_begins(exchange)
            try:
                yield
            finally:
                live.exchange_ended(exchange)

    async def accept_counted(
        self,
        exchange: Exchange,
        request: Request,
        who: RequestContext,
        params: Object,
        headers: Headers,
        server: str = "",
    ) -> Answer:
        """Do as `accept`, for a call that was counted."""
        reply, meta = self.begin(exchange, request, who, params, headers, may_repeat=not request.again)
        check, correlation = request.check_mirrored, who.correlation
        sent = None if request.era is LEGACY else request.headers
        call = Call(exchange, request.era, params, meta, correlation, check, server, who.principal, sent)
        try:
            if request.again:
                await self._relay_again(request, call)
            else:
                await self._relay(request, call, who)
        except BaseException as error:
            return self._not_sent(call, reply, error)
        return reply

    async def _relay(self, request: Request, call: Call, who: RequestContext | None = None) -> None:
        """Send a call to its server. `who` None: no path is made of it, because it is a repetition.

        Raises: as `Endpoint.relay`.
        """
        if request.forwarded is not None:
            await request.forwarded.started()
        route = await self.endpoints[request.endpoint].relay(call)
        offer = request.offer
        if route is not None and who is not None and offer is not None and offer.decided is not None:
            offer.make(functools.partial(self._paths.of, offer.decided, route, who, request.params))

    # -- for the fast path (`gateway.relay.fast_path.GeneralWay`)

    def may_repeat(self, request: Request, route: Route) -> bool:
        """Return True if calls like one that took that route need no look of their own."""
        return self._watching.may_be_unsampled(request) and self.endpoints[request.endpoint].may_repeat(route)

    def prepared(
        self, decided: Decided, route: Route, request: Request, who: RequestContext, params: Object
    ) -> Prepared:
        """Make what a server gets of a request with these params, on which that was decided. Nothing is sent or
        counted."""
        exchange = decided.exchange_for(request, who)
        meta = self._meta(request.params, exchange, who.correlation)
        meta, trace = self._watching.carried_unsampled(meta, request, who.correlation)
        sent = None if request.era is LEGACY else request.headers
        call = Call(exchange, request.era, params, meta, who.correlation, None, "", who.principal, sent)
        return self.endpoints[request.endpoint].prepared(route, call)._replace(trace=trace)

    # -- what every call needs

    async def _relay_again(self, request: Request, call: Call) -> None:
        if call.live is not None and (lost := call.live.lost) is not None:
            # Else a client that comes back for one of them would have the call repeated once more.
            await lost.looked()
            await lost.end(self._events, call.live.session.id, call.exchange.client_id)
        if not await _may_repeat(self.endpoints[request.endpoint], call):
            call.exchange.fail(OUTCOME_UNKNOWN, _UNKNOWN)
            return
        try:
            await self._relay(request, call)
        except UpstreamUnavailable as error:
            call.exchange.fail(OUTCOME_UNKNOWN, f"{_UNKNOWN} It could not be made again: {error}")

    def _not_sent(self, call: Call, reply: CallReply, error: BaseException) -> Answer:
        """The reply to a call that could not be sent. Raises what is no answer to a call."""
        if isinstance(error, UpstreamUnavailable | HandshakeRefused | LinkClosed | InvalidArguments):
            self._answer_failure(call, error)
            return reply
        if isinstance(error, Refused) and reply.live is not None:
            error.about({"session": redact(reply.live.session.id)})
        self._watching.forget(call.exchange)
        reply.release()
        raise error

    def begin(
        self,
        exchange: Exchange,
        request: Request,
        who: RequestContext,
        params: Object,
        headers: Headers,
        *,
        may_repeat: bool = False,
    ) -> tuple[CallReply, Object]:
        """Begin to answer a call that was counted: its reply, and the `_meta` for its server.

        Whoever begins a call answers its exchange, or ends the reply. `may_repeat`: the request, if its tool allows
        that, is kept for the case that this process dies.

        Raises:
            Refused: 429, as `accept`.
        """
        live = live_session_of(exchange)
        held = 0
        if live is not None:
            held = self._room_for(live, request.body_bytes)  # no await from here to `CallReply`, which counts as use
        meta = self._meta(params, exchange, who.correlation)
        meta = self._watching.begin(exchange, request, meta, who.correlation)
        events = self._events if request.era is LEGACY else None
        kept = None
        if may_repeat and exchange.method == "tools/call" and request.body_bytes <= KEPT_BYTES:
            kept = request
        cluster = self._cluster
        reply = CallReply(
            exchange, live, headers, events=events, cluster=cluster, held=held, request=kept, kept=self._kept
        )
        return reply, meta

    def _kept(self, exchange: Exchange, request: Request) -> bytes:
        """What is kept of a request; empty if its tool does not allow a repetition, or if it is too large."""
        endpoint = self.endpoints[request.endpoint]
        if not endpoint.called(live_session_of(exchange), exchange.context, request.params).is_repeatable:
            return b""
        kept = encode(KeptCall(request.endpoint, request.params))
        return kept if len(kept) <= KEPT_BYTES else b""

    def _answer_failure(
        self, call: Call, error: UpstreamUnavailable | HandshakeRefused | LinkClosed | InvalidArguments
    ) -> None:
        """Answer a call that could not be sent."""
        match error:
            case UpstreamUnavailable():
                call.exchange.fail(UPSTREAM_UNAVAILABLE, str(error))
            case HandshakeRefused():
                call.exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))
            case LinkClosed():
                call.exchange.fail(OUTCOME_UNKNOWN, str(error))
            case InvalidArguments():
                self._watching.metrics.counters["argument_errors"][error.fault] += 1
                result = msgspec.Raw(tool_error(call.era, str(error)))
                call.exchange.finish(Message(jsonrpc="2.0", id=0, result=result))

    def meta(self, params: Object, session: Session, correlation: str) -> Object:
        """The `_meta` for the server: the client's, without the gateway's keys and a workspace that is not the
        session's, and with the facts of the session, which has the context of the request
        (`gateway.context.facts.with_context`)."""
        facts = {CONTEXT_KEY: self._context_meta(session).of(correlation)}
        return self._agreed(without_reserved(meta_of(params)) | facts, session.context)

    def _meta(self, params: Object, exchange: Exchange, correlation: str) -> Object:
        """The `_meta` for the server of a call."""
        live = live_session_of(exchange)
        if live is None:
            return self._agreed(without_reserved(meta_of(params)), exchange.context)
        return self.meta(params, with_context(live.session, exchange.context), correlation)

    def _room_for(self, live: LiveSession, size: int) -> int:
        """The bytes that count for one more call with a body of this size. Raises `Refused`: there is no room."""
        if live.busy >= self.max_exchanges:
            raise too_many_exchanges()
        if size <= SMALL_BODY_BYTES:
            return 0
        if live.held_bytes and live.held_bytes + size > self._max_bytes:
            self._watching.metrics.limited[Limited.IN_FLIGHT] += 1
            raise too_much_in_flight("this session")
        return size

    async def count(self, live: LiveSession) -> None:
        """Count a message of a session that is no call. Raises `Refused`: 429."""
        with live.in_use():
            await self._rates.call(live.session.id)

    def attach(self, exchange: Exchange, headers: Headers, request: Request, correlation: str) -> Answer:
        """The reply to a client that resumes a suspended call."""
        self._watching.begin_again(exchange, request, correlation)
        return CallReply(exchange, live_session_of(exchange), headers, events=None, cluster=self._cluster)


async def _may_repeat(endpoint: Endpoint, call: Call) -> bool:
    """Whether a call that may have taken effect can be repeated. False if the server cannot be asked."""
    try:
        return await endpoint.is_repeatable(call)
    except (UpstreamUnavailable, HandshakeRefused, LinkClosed):
        return False
