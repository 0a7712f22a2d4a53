"""Sends a request to a peer, relays the answer to the client, and decides what a failure means for the peer.

The peer answers with frames: `h` the head of the response, `b` pieces of its body, `e` its end. Or it answers with `m`:
the peer does not serve the session (any more). Or with `r`: the peer refuses the envelope. Small requests go on the
channel to the peer (`transports/peer_channel.py`): there `x` is the ticket for an answer that goes on at another
connection.

A request that went out may have taken effect, unless the peer has said that it has not. It is sent to the same peer
again, which executes one copy, but to another replica as one that may have taken effect.
"""

import asyncio
import logging
from time import monotonic
from typing import Final

from gateway.cluster.channels import Channels, Peer
from gateway.cluster.copies import Copies, Ticket, facts_of
from gateway.cluster.envelope import Envelopes, ForwardedRequest, Refusal
from gateway.cluster.forwarded_answer import ForwardedAnswer
from gateway.cluster.liveness import Lease, Liveness, Outcome, after_refusal, decide
from gateway.cluster.ownership import LEASE_S, Cluster, Route
from gateway.cluster.relayed_reply import RelayedReply
from gateway.errors import unreachable
from gateway.observability.request_log import RequestLog
from session_store import StoreUnavailable
from transports.inbound.http import ClientWatch
from transports.inbound_port import Refused
from transports.peer_channel import MAX_DEFINITION_BYTES, PeerCall
from transports.replica_wire import PeerConnection, PeerConnectionLost, PeerConnectionPool, PeerRefused, PeerTimedOut

__all__ = ["PeerRequests"]

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.1
"""Between two tries, while the lease of a peer is valid whose address closes connections."""


class PeerRequests:
    """Sends requests to peers. Decides nothing about sessions."""

    def __init__(self, cluster: Cluster, envelopes: Envelopes, log: RequestLog) -> None:
        self._cluster = cluster
        self._envelopes = envelopes
        self._log = log
        self._pool = PeerConnectionPool(envelopes.peer_keys)
        self._channels = Channels(self._pool, envelopes)

    def begin(self, route: Route, traceparent: str, body: bytes) -> ForwardedAnswer | None:
        """Send a POST on the channel to the session's owner, if there is one. The lease is not asked for: the owner
        knows whether it owns the session. `route` has what the POST has in common with others."""
        channel, memory = self._channels.ready(route.session.owner), route.memory
        if channel is None or memory is None or self._log.tracing is not None:
            return None
        if len(memory.common) > MAX_DEFINITION_BYTES:
            return None
        return ForwardedAnswer(channel.ask(memory, facts_of(route, traceparent), body), route, self._answered)

    def _answered(self, route: Route) -> None:
        self._log.metrics.forwarded["answered"] += 1
        self._cluster.found(route.session.id)

    async def ask(self, peer: Peer, request: ForwardedRequest, reply: RelayedReply) -> Outcome:
        """Have that peer answer the client. Returns how the request has ended.

        Raises:
            Refused: 503, the peer cannot be reached, and it is too early to say that it is gone.
        """
        forwarded, copies = self._log.metrics.forwarded, None
        try:
            with self._log.forwarding(request.route.session, peer.replica) as traced:
                copies = Copies(peer, request, traced, self._envelopes, self._pool, self._channels)
                outcome = await self._ask(peer, copies, reply)
        except Refused:
            forwarded["unreachable"] += 1
            raise
        finally:
            if copies is not None and copies.may_have_run:
                reply.start()
        forwarded[outcome.name.lower()] += 1
        return outcome

    async def _ask(self, peer: Peer, copies: Copies, reply: RelayedReply) -> Outcome:
        timed_out_since: float | None = None
        has_lost = False
        while True:
            try:
                connection = await copies.send()
            except PeerRefused:
                return Outcome.GONE
            except (PeerTimedOut, PeerConnectionLost) as failure:
                timed_out_since = timed_out_since or monotonic()
                if (outcome := await self._before_next(peer, timed_out_since, failure)) is not None:
                    return outcome
                continue
            ended = await self._watched(connection, peer, copies, reply)
            if isinstance(ended, Ticket):
                copies.fetch(ended)
                continue
            if ended is not None:
                return ended
            fate = await self._after_loss(peer)
            if reply.has_started or fate is Outcome.GONE:
                return fate
            if not has_lost:
                has_lost = True  # the first was perhaps idle for too long
                continue
            # Something else may accept connections at the address of a peer that is dead: the lease decides.
            timed_out_since = timed_out_since or monotonic()
            if (outcome := await self._before_next(peer, timed_out_since, PeerConnectionLost())) is not None:
                return outcome

    async def _before_next(self, peer: Peer, since: float, failure: Exception) -> Outcome | None:
        """The outcome for a peer that has not been reached `since` then. None: it is time for the next try."""
        outcome = await self._after_timeout(peer, monotonic() - since)
        if outcome is None and isinstance(failure, PeerConnectionLost):
            await asyncio.sleep(_AGAIN_S)  # a time-out has taken a while itself
        return outcome

    async def _watched(
        self, connection: PeerConnection | PeerCall, peer: Peer, copies: Copies, reply: RelayedReply
    ) -> Outcome | Ticket | None:
        """Relay the answer until the client leaves. None: the connection was lost first."""
        watch = ClientWatch(reply.receive, connection.close)
        try:
            return await self._relay(connection, peer, copies, reply)
        except PeerConnectionLost:
            return Outcome.ANSWERED if watch.left else None
        except BaseException:
            connection.close()  # notifies the peer that the client has left
            raise
        finally:
            watch.stop()

    async def _relay(
        self, connection: PeerConnection | PeerCall, peer: Peer, copies: Copies, reply: RelayedReply
    ) -> Outcome | Ticket:
        while True:
            try:
                kind, payload = await connection.next()
            except PeerTimedOut:
                outcome = await self._after_timeout(peer, connection.quiet_for_s)
                if outcome is not None:
                    connection.close()
                    return outcome
                continue
            if kind == b"m":
                connection.done()
                copies.returned()
                return Outcome.MOVED
            elif kind == b"x":
                connection.done()
                reply.start()
                return Ticket(payload.decode())
            elif kind == b"r":
                connection.close()
                return self._after_refusal(payload, copies, reply)
            elif kind == b"e":
                connection.done()
                await reply.end(payload)
                return Outcome.ANSWERED
            else:
                await reply.pass_on(kind, payload)

    # -- what a failure means for the peer

    async def _after_timeout(self, peer: Peer, timed_out_for_s: float) -> Outcome | None:
        """The outcome for a peer that has timed out, or closes connections. None: wait longer. Raises `Refused`: it is
        unknown, and the client has waited long enough."""
        try:
            lease = await self._lease_of(peer)
        except StoreUnavailable:
            lease = Lease.UNKNOWN
        decision = decide(lease, for_a_lease=timed_out_for_s >= LEASE_S)
        if decision is Liveness.UNDECIDED:
            raise unreachable()
        return _OUTCOMES[decision]

    async def _lease_of(self, peer: Peer) -> Lease:
        _, leased = await self._cluster.address_of(peer.replica)
        if leased:
            return Lease.VALID
        return Lease.EXPIRED if self._cluster.trusts_expired_leases else Lease.UNKNOWN

    async def _after_loss(self, peer: Peer) -> Outcome:
        """The outcome for a peer that lost the connection during its answer. A new connection shows whether it runs."""
        try:
            (await self._pool.open(peer.address, peer.replica)).done()
        except PeerRefused:
            return Outcome.GONE
        except (PeerTimedOut, PeerConnectionLost):
            pass
        return Outcome.UNKNOWN

    def _after_refusal(self, payload: bytes, copies: Copies, reply: RelayedReply) -> Outcome:
        refusal = Refusal(payload.decode())
        outcome = after_refusal(refusal)
        if refusal is not Refusal.SEEN:
            copies.returned()
        if outcome is None:
            logger.error("another gateway on this store refuses requests of this one: compare their keys and clocks")
            raise unreachable()
        if refusal is Refusal.SEEN:
            reply.start()
        return outcome

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()
        self._pool.close()


_OUTCOMES: Final = {
    Liveness.WAIT: None,
    Liveness.GONE: Outcome.GONE,
    Liveness.CUT_OFF: Outcome.CUT_OFF,
}
