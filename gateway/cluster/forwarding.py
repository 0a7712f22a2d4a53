"""Forward requests to the replicas that own their sessions, and take sessions over from dead owners.

This runs on the replica to which the client is connected. `peer_listener.py` is the owner's side.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from time import monotonic, time
from typing import Final, cast
from weakref import WeakSet

from msgspec.structs import replace

from gateway.cluster.forwarded_answer import ForwardedAnswer, RelayedReply, message_in
from gateway.cluster.forwarded_request_envelope import SharedFacts
from gateway.cluster.ownership import Cluster, Route
from gateway.cluster.requests_to_peers import ForwardedRequest, Peer, PeerRequests
from gateway.cluster.takeover_decision import PeerOutcome
from gateway.context.session_facts import new_correlation_id, trace_id_of
from gateway.errors import store_unavailable, unreachable
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.observability.request_log import CORRELATION_HEADER
from gateway.observability.tracing import PEER_HEADER
from gateway.policy.rate_limits import RateLimits
from session_store import Session, StoreUnavailable
from transports.inbound.connection_handover import ANSWERED_BY
from transports.inbound.host_and_origin import Guard
from transports.inbound.http_requests_and_responses import ClientWatch, Receive, Scope, Send
from transports.inbound_port import Answer, AnsweringConnection, CallValues, HeaderList, OwnedByPeer, Refused, Request
from transports.jsonrpc import is_one_value
from transports.peer_channel import PeerCall
from transports.peer_frames import LogLimit

logger = logging.getLogger(__name__)

_HANDOVER_S: Final = 0.02
"""Seconds to wait after the owner has released a session, before the request is handled again."""

_UNTIL: Final = "mcp.again_until"
_PATIENCE_S: Final = 15.0
"""Seconds for which a request that may have taken effect waits for an owner or the store: enough for an outage of the
store and two lease times."""

_AGAIN_S: Final = 0.2

_NOT_FORWARDED: Final = frozenset(
    {
        *(b"authorization", b"proxy-authorization", b"connection", b"content-length", b"transfer-encoding"),
        *(PEER_HEADER.encode(), CORRELATION_HEADER.encode()),
    }
)
_NOT_REACHED: Final = frozenset({PeerOutcome.GONE, PeerOutcome.CUT_OFF, PeerOutcome.SILENT})
_RETURNED: Final = frozenset({PeerOutcome.MOVED, *_NOT_REACHED})


class ForwardingPath:
    """Forward the later calls of one client connection to one owner, on the fast path
    (`transports.inbound_port.CallPath`). `route` leads to the owner. `is_here` gets a session id and returns True if
    the session is live on this replica.

    After the `Forwarder` has forwarded a call, later calls take this path if they differ from that call only in id,
    progress token and arguments. The owner decides everything about the session of these calls. The `Forwarder`
    continues unusual calls (docs/adr/0040-the-fast-path.md).
    """

    __slots__ = ("__weakref__", "_client", "_is_here", "_peers", "_rates", "_route", "_until", "is_over")

    def __init__(
        self, peers: PeerRequests, rates: RateLimits, is_here: Callable[[str], bool], route: Route, client: str
    ) -> None:
        self._peers = peers
        self._rates = rates
        self._is_here = is_here
        self._route = replace(route, is_read=False)
        self._client = client
        self._until = route.until - time() + monotonic()
        self.is_over = False

    def end(self) -> None:
        """End this path: no more calls are sent on it, because their sender has to be authenticated again."""
        self._until = 0.0

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        values: CallValues,
        trace: bytes = b"",
        correlation: str = "",
    ) -> "ForwardedCall | None":
        """Send the call with this body to the owner, and return the call in flight. Return None, and send nothing, if
        the call cannot take the fast path. `values` are the call's own texts (`CallValues`), `trace` is its
        `traceparent`, and `correlation` is not used."""
        route, peers = self._route, self._peers
        memory, is_in_time = route.memory, monotonic() < self._until
        if memory is None or memory.is_stale or not is_in_time or self._is_here(route.session.id):
            self.is_over = True
            return None
        if values[2] and not is_one_value(values[2]):
            return None
        traceparent = trace.decode()
        correlation = trace_id_of(traceparent) if traceparent else new_correlation_id()
        channel = peers.channel_to(route)
        if not correlation or channel is None or not self._rates.spend_at_hand(route.principal, self._client, ""):
            return None
        call = peers.send(channel, route, traceparent, body, correlation)
        return ForwardedCall(peers, route, connection, call, correlation)


class ForwardedCall:
    """A call that was sent to the owner on the fast path, and is not answered yet
    (`transports.inbound_port.CallInFlight`)."""

    __slots__ = ("_began", "_call", "_connection", "_correlation", "_peers", "_route")

    def __init__(
        self, peers: PeerRequests, route: Route, connection: AnsweringConnection, call: PeerCall, correlation: str
    ) -> None:
        self._peers = peers
        self._route = route
        self._connection: AnsweringConnection | None = connection
        self._call = call
        self._correlation = correlation
        self._began = monotonic()
        call.when_answered(self._receive)

    def _receive(self) -> None:
        """Send the owner's answer to the client. Let the `Forwarder` continue the call if the answer is not one small
        message."""
        connection, found = self._connection, message_in(self._call.answer)
        if connection is None:
            return
        try:
            is_answered = found is not None and connection.answer_fast(*found)
        except Exception:  # which must not end the channel, with all other calls
            logger.exception("an answer cannot be given on the fast path")
            is_answered = False
        if is_answered:
            self._connection = None
            self._call.done()
            self._peers.answered(self._route)
        else:
            self.fall_back()
            self._call.wake()  # the `Forwarder` was not told of what has come

    def fall_back(self) -> None:
        """Leave the fast path: the `Forwarder` continues the call. Do nothing if the call has already left it or is
        answered."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fall_back(self._began, self._elsewhere)

    def _elsewhere(self, request: Request) -> Answer:
        """Raise `OwnedByPeer`, as on the general way, so that the `Forwarder` continues the request. Call this in the
        request's own context (`contextvars`)."""
        CLIENT.set(request.client)
        CORRELATION.set(self._correlation)
        raise OwnedByPeer(replace(self._route, begun=self._peers.answer_to(self._call, self._route)))


def _start_begun(route: Route, reply: RelayedReply) -> None:
    """Record in `reply` that the request may have taken effect, if it was already sent (`route.begun`)."""
    if route.begun is not None and route.begun.call.may_have_run:
        reply.start()


@dataclass(eq=False, repr=False)
class Forwarder:
    """Forward requests to the owners of their sessions, and take sessions over from dead owners."""

    cluster: Cluster
    peers: PeerRequests
    guard: Guard
    rates: RateLimits
    _: KW_ONLY
    take_over: Callable[[Session], None]
    """Called with each session that this replica has claimed."""
    is_here: Callable[[str], bool]
    """Gets a session id, and returns True if the session is live on this replica."""
    stripped: Callable[[HeaderList], HeaderList]
    """Removes session tokens from headers, because this replica has verified them."""
    _contested: LogLimit = field(init=False, default_factory=LogLimit)
    _streams: dict[asyncio.Timeout, RelayedReply] = field(init=False, default_factory=dict)
    _paths: WeakSet[ForwardingPath] = field(init=False, default_factory=WeakSet)

    def _for_owner(self, headers: HeaderList) -> HeaderList:
        return self.stripped([(name, value) for name, value in headers if name not in _NOT_FORWARDED])

    async def forward(self, route: Route, scope: Scope, body: bytes, receive: Receive, send: Send) -> Send | None:
        """Forward a request to the session's owner, relay the answer to the client, and return None.

        If the owner does not answer, return the ASGI `send` for another try: the caller handles the request again,
        because this replica owns the session now or may claim it. `scope["mcp.again"]` is True if the request may have
        taken effect.

        Raises:
            Refused: 503, the owner is unreachable and the session cannot be claimed.
        """
        reply = RelayedReply(receive, send)
        if scope["method"] != "GET":
            return await self._forward(route, scope, body, reply)
        try:
            async with asyncio.timeout(None) as stream:
                self._streams[stream] = reply
                return await self._forward(route, scope, body, reply)
        except TimeoutError:
            if not stream.expired():
                raise
            await reply.end()
            return None
        finally:
            del self._streams[stream]

    def end_streams(self) -> None:
        """End all forwarded event streams (GET) when this replica drains, so that clients open them at another replica.
        The owner serves these streams without a time limit."""
        now = asyncio.get_running_loop().time()
        for stream, reply in self._streams.items():
            if reply.has_begun:
                stream.reschedule(now)

    async def _forward(self, route: Route, scope: Scope, body: bytes, reply: RelayedReply) -> Send | None:
        request = self._request(route, scope, body)
        scope[ANSWERED_BY] = route.session.owner
        outcome = None
        try:
            outcome = await self._settled(request, reply, scope)
        finally:
            if outcome is not PeerOutcome.ANSWERED:
                del scope[ANSWERED_BY]
                if route.begun is not None:
                    route.begun.call.close()
            # After 404 the session has ended, so that its record and its route are of no more use.
            if route.memory is not None and (outcome is not PeerOutcome.ANSWERED or reply.status == 404):
                route.memory.end()
        scope["mcp.relayed"] = outcome is PeerOutcome.ANSWERED and reply.is_plain
        return await self._after(outcome, reply, scope)

    def begin(self, route: Route, request: Request, body: bytes) -> ForwardedAnswer | None:
        """Send a POST to the session's owner, and return the pending answer. If `ForwardingPath` has sent the POST
        already, return that answer. Return None, and send nothing, if only `forward` can forward the POST: for example,
        no channel is ready."""
        memory = route.memory
        if route.begun is not None:
            return cast("ForwardedAnswer", route.begun)  # `ForwardingPath` has sent it
        if memory is None or request.again:
            return None
        if not memory.common:
            # Each request has its own `traceparent`.
            headers = (header for header in request.headers.items() if header[0] != "traceparent")
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
            common = SharedFacts.of(route, request.endpoint, self._for_owner(raw), secure=request.secure)
            memory.keep_common(common.packed())
        channel = self.peers.channel_to(route)
        if channel is None:
            return None
        if request.offer is not None and "traceparent" not in request.meta:
            request.offer.make(functools.partial(self._path, route))
        trace = request.headers.get("traceparent", "")
        return self.peers.answer_to(self.peers.send(channel, route, trace, body), route)

    def _path(self, route: Route, request: Request, _: float) -> ForwardingPath:
        """Return the fast path to the owner for calls like `request`. The owner enforces the calls' time limits."""
        path = ForwardingPath(self.peers, self.rates, self.is_here, route, request.client)
        self._paths.add(path)
        return path

    def end_paths(self) -> None:
        """End the fast paths to owners, so that the senders of later calls are authenticated again."""
        for path in self._paths:
            path.end()
        self._paths.clear()

    def _request(self, route: Route, scope: Scope, body: bytes) -> ForwardedRequest:
        common = SharedFacts.of(
            route,
            scope["path"].removeprefix(scope.get("root_path", "")),
            self._for_owner(scope["headers"]),
            secure=self.guard.is_secure(scope, self.guard.headers(scope)),
            method=scope["method"],
            again=bool(scope.get("mcp.again")),
        )
        return ForwardedRequest(route, common, body)

    async def _settled(self, request: ForwardedRequest, reply: RelayedReply, scope: Scope) -> PeerOutcome:
        """Forward a request, and return how it has ended. If the owner or the store cannot be reached, refuse the
        request, unless it may have taken effect: then try again for up to `_PATIENCE_S`. Raises `Refused`: nothing was
        sent to a server."""
        while True:
            try:
                outcome = await self._outcome(request, reply)
                if outcome is not PeerOutcome.ANSWERED and reply.has_started and not reply.has_begun:
                    await self.cluster.beat()  # fails without the store, which has to tell the session's next owner
                return outcome
            except (StoreUnavailable, Refused) as error:
                _start_begun(request.route, reply)
                if not (reply.has_started or request.common.again):
                    raise (error if isinstance(error, Refused) else store_unavailable()) from None
                if monotonic() >= scope.setdefault(_UNTIL, monotonic() + _PATIENCE_S):
                    reply.start()
                    return PeerOutcome.TIMED_OUT
                if reply.has_begun and not reply.go_on(request.common.method):
                    return PeerOutcome.LOST
            again, route = replace(request.common, again=True), replace(request.route, begun=None)
            request = replace(request, common=again, route=route)
            await asyncio.sleep(_AGAIN_S)

    async def _outcome(self, request: ForwardedRequest, reply: RelayedReply) -> PeerOutcome:
        session, cluster = request.route.session, self.cluster
        owner = session.owner
        if owner in ("", cluster.replica):
            return await self._hand_over(request, reply)
        address, leased = await cluster.address_of(owner)
        if address:
            outcome = await self.peers.ask(Peer(owner, address), request, reply)
        else:
            _start_begun(request.route, reply)
            # A lease without an address: no replica reaches the owner.
            outcome = PeerOutcome.CUT_OFF if leased else PeerOutcome.GONE
        if outcome not in _NOT_REACHED:
            cluster.owner_answered(session.id)
        elif await cluster.may_claim():
            await self._claim(session, outcome, address if leased else None)
        elif not reply.has_started:
            return await self._have_claimed(session, reply)
        return outcome

    async def _have_claimed(self, session: Session, reply: RelayedReply) -> PeerOutcome:
        """Ask other replicas, one after the other, to claim a session whose owner this replica does not reach. This
        replica itself may claim no session now. Each asked replica first looks for the owner, in case only this replica
        is cut off from it. No part of the request is sent before the claim.

        Return `MOVED` if a replica has claimed the session, `ANSWERED` if the client has left. Raises `Refused`: 503, a
        replica reaches the owner, or none claims the session.
        """
        tried, has_claimed = [session.owner], None
        try:
            async with asyncio.timeout(None) as waiting:
                watch = ClientWatch(reply.receive, lambda: waiting.reschedule(0.0))
                try:
                    while has_claimed is None and (another := await self.cluster.random_peer(*tried)) is not None:
                        has_claimed = await self.peers.ask_to_claim(Peer(*another), session.id)
                        tried.append(another[0])
                finally:
                    watch.stop()
        except TimeoutError:
            if not waiting.expired():
                raise
            return PeerOutcome.ANSWERED
        if not has_claimed:
            raise unreachable()
        return PeerOutcome.MOVED

    async def claim_for_peer(self, session_id: str) -> bool | None:
        """Claim a session because a peer that may claim none asks for it. Return True if the session was claimed or no
        other replica owns it: then the peer looks up its owner again. Return False if this replica reaches the
        session's owner; None if this replica may not claim sessions either.

        Raises:
            Refused: 503, the owner may run.
            StoreUnavailable: the store does not answer.
        """
        cluster = self.cluster
        if cluster.is_leaving or not await cluster.may_claim():
            return None
        session = await cluster.owned_elsewhere(session_id)
        if session is None:
            return True
        address, leased = await cluster.address_of(session.owner)
        if address:
            outcome = await self.peers.greet_owner(session, address)
        else:
            outcome = PeerOutcome.CUT_OFF if leased else PeerOutcome.GONE
        if outcome not in _NOT_REACHED:
            cluster.owner_answered(session.id)
            return False
        if cluster.is_leaving or not await cluster.may_claim():  # looking may take as long as a lease
            return None
        await self._claim(session, outcome, address if leased else None)
        return True

    async def _claim(self, session: Session, outcome: PeerOutcome, refused_at: str | None) -> None:
        """Claim the session of an owner that could not be reached. `outcome` says how the last try to reach it has
        ended. `refused_at` is the owner's address; None if its lease is not valid.

        Raises:
            Refused: 503, the owner runs, and took the session from this replica while this replica ran.
        """
        if outcome is PeerOutcome.GONE and refused_at:
            if await self.cluster.is_contested(session):
                if self._contested.allows():
                    logger.error(
                        "replica %s took over sessions of this one and is running, but refuses connections at %s: two "
                        "gateways do not find each other. Requests of these sessions get 503. Correct "
                        "gateway.advertise there or here (%s)",
                        *(session.owner, refused_at, self.cluster.address),
                    )
                raise unreachable()
            self.cluster.address_refused(session.owner, refused_at)
        claimed = await self.cluster.claim_from_owner(session, may_run=outcome is not PeerOutcome.GONE)
        if claimed is not None and claimed.owner == self.cluster.replica:
            self.take_over(claimed)

    async def _hand_over(self, request: ForwardedRequest, reply: RelayedReply) -> PeerOutcome:
        """Send a request of an unowned session to the other replicas, one after the other, until one claims the session
        and serves the request. Called if this replica may not claim the session: it drains, or others do not reach it,
        or one of them has a newer configuration.

        Return `MOVED` if some replicas were reached and none may claim the session. Raises `Refused`: 503, no replica
        is reached.
        """
        tried, was_returned = list[str](), False
        while (another := await self.cluster.random_peer(*tried)) is not None:
            tried.append(another[0])
            try:
                outcome = await self.peers.ask(Peer(*another), request, reply)
            except Refused:
                if reply.has_started:
                    raise
                continue
            if reply.has_started or outcome not in _RETURNED:
                return outcome
            was_returned = was_returned or outcome is PeerOutcome.MOVED
        if not was_returned:
            raise unreachable()
        return PeerOutcome.MOVED

    async def _after(self, outcome: PeerOutcome, reply: RelayedReply, scope: Scope) -> Send | None:
        if outcome is PeerOutcome.ANSWERED:
            return None
        if reply.has_started:  # by an earlier try, if the last one has `MOVED`
            logger.warning("the replica that owns a session stopped answering while a call was in flight")
            scope["mcp.again"] = True
        if outcome is PeerOutcome.MOVED:
            await asyncio.sleep(_HANDOVER_S)
            return reply.send
        if not reply.has_begun or reply.go_on(scope["method"]):
            return reply.send
        with contextlib.suppress(OSError):  # the client can resume a recorded stream at another replica
            await reply.end()
        return None
