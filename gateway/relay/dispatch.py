"""One call on its way: bounded, given its context, counted as use of its session."""

from typing import Final

import msgspec

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.cluster.ownership import Cluster, Forwarded
from gateway.config.limits import LimitSettings
from gateway.context.facts import CONTEXT_KEY, TRACE_KEY, context_meta, without_our_keys
from gateway.errors import OUTCOME_UNKNOWN, too_many_exchanges, too_much_in_flight
from gateway.observability.request_log import RequestLog
from gateway.policy.rate_limits import RateLimits
from gateway.protocol.handshake import HandshakeRefused
from gateway.protocol.params import meta_of
from gateway.relay.endpoint import Endpoint
from gateway.relay.replies import CallReply
from session_store import EventLog
from session_store.session import redact
from transports.era import Era
from transports.inbound.bodies import SMALL_BODY_BYTES, Bodies
from transports.inbound.limits import Limited
from transports.inbound_port import Answer, Request
from transports.jsonrpc import Message, Object, RequestId, encode
from transports.turns import is_large
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["Relay", "id_of", "message_of", "meta_for_upstream"]


_UNKNOWN: Final = (
    "The gateway that served this session died before it answered; whether the call took effect is unknown"
)


class Relay:
    """What calls of both eras have in common. `result_meta` puts trace facts into results. `bodies` is the account of
    the whole process, which every wire takes from while it reads."""

    def __init__(
        self,
        *,
        events: EventLog,
        result_meta: bool,
        limits: LimitSettings,
        cluster: Cluster | None = None,
        rates: RateLimits,
        watching: RequestLog,
    ) -> None:
        self._cluster = cluster
        self._rates = rates
        self._watching = watching
        self._events = events
        self.result_meta = result_meta
        self._max_exchanges = limits.exchanges
        self._max_bytes = limits.in_flight_bytes
        self.bodies = Bodies(limits.all_in_flight_bytes, watching.metrics.limited, too_much_in_flight)

    async def send(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        era: Era,
        params: Object,
        headers: list[tuple[bytes, bytes]],
        correlation: str,
        request: Request,
    ) -> Answer:
        """Send a call upstream; its outcome comes through the answer.

        Raises:
            Refused: 429, too many calls of the session are in flight, or too large ones; or the call names nothing that
                exists.
        """
        live = exchange.live
        held = 0
        if live is not None:
            await self._rates.call(live.session)
            # Compared last: the reply below counts, and nothing is waited for in between.
            if live.busy >= self._max_exchanges:
                raise too_many_exchanges()
            if request.body_bytes > SMALL_BODY_BYTES:
                held = self._room_for(live, request.body_bytes)
        meta = self._watching.begin(exchange, request, meta_for_upstream(params, live, correlation), correlation)
        exchange.check_mirrored = request.check_mirrored
        events = self._events if era is Era.LEGACY else None
        reply = CallReply(exchange, headers, events=events, cluster=self._cluster, held=held)
        try:
            forwarded: Forwarded | None = request.forwarded
            if request.again and not await self._may_repeat(exchange, endpoint, era, params, correlation):
                exchange.fail(OUTCOME_UNKNOWN, _UNKNOWN)
                return reply
            if forwarded is not None:
                await forwarded.started()
            if is_large(params) or not endpoint.relay_now(exchange, era, params, meta, correlation):
                await endpoint.relay(exchange, era, params, meta, correlation)
        except BaseException:
            self._watching.forget(exchange)
            await reply.done()
            raise
        return reply

    def _room_for(self, live: LiveSession, size: int) -> int:
        """The bytes to count, if the session may have so many more in flight."""
        if live.held_bytes and live.held_bytes + size > self._max_bytes:
            self._watching.metrics.limited[Limited.IN_FLIGHT] += 1
            raise too_much_in_flight("this session")
        return size

    async def count(self, live: LiveSession) -> None:
        """Count what a session asks for that is no call. Raises `Refused`: 429."""
        await self._rates.call(live.session)

    def attach(
        self, exchange: Exchange, headers: list[tuple[bytes, bytes]], request: Request, correlation: str
    ) -> Answer:
        """The rest of a call that is under way already."""
        self._watching.begin_again(exchange, request, correlation)
        return CallReply(exchange, headers, events=None, cluster=self._cluster)

    @staticmethod
    async def _may_repeat(exchange: Exchange, endpoint: Endpoint, era: Era, params: Object, correlation: str) -> bool:
        try:
            return await endpoint.is_repeatable(exchange, era, params, correlation)
        except (UpstreamUnavailable, HandshakeRefused, LinkClosed):
            return False

    def trace(self, live: LiveSession, correlation: str) -> Object:
        """The trace facts for a result's `_meta`, if they are wanted."""
        if not self.result_meta:
            return {}
        trace = {"session": redact(live.session.id), "correlation_id": correlation}
        return {TRACE_KEY: msgspec.Raw(encode(trace))}


def meta_for_upstream(params: Object, live: LiveSession | None, correlation: str) -> Object:
    """`_meta` as the upstream is to see it: the client's, less what only we may say, and the session's context."""
    meta = without_our_keys(meta_of(params))
    return meta if live is None else meta | {CONTEXT_KEY: context_meta(live.session, correlation)}


def message_of(request: Request) -> Message:
    """The message of a request that has one."""
    assert request.message is not None
    return request.message


def id_of(message: Message) -> RequestId:
    """The id of a message that is a request."""
    assert isinstance(message.id, int | str)
    return message.id
