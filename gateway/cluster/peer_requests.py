"""Sends a request to a peer, relays the answer to the client, and decides what a failure means for the peer.

The peer answers with frames: `h` the head of the response, `b` pieces of its body, `e` its end. Or it answers with `m`:
the peer does not serve the session (any more). Or with `r`: the peer refuses the envelope. Small requests go on the
channel to the peer (`transports/peer_channel.py`): there `x` is the ticket for an answer that goes on at another
connection.

A request that went out may have taken effect, unless the peer has said that it has not. It is sent to the same peer
again, which executes one copy; but only for some seconds, because the peer remembers copies for a limited time. To
another replica it is sent as one that may have taken effect.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Final

from gateway.cluster.channels import Channels, Peer
from gateway.cluster.copies import Copies, Ticket, facts_of
from gateway.cluster.envelope import Envelopes, ForwardedRequest, Refusal
from gateway.cluster.forwarded_answer import ForwardedAnswer
from gateway.cluster.lease import DOUBT_S, LEASE_S
from gateway.cluster.liveness import Lease, Liveness, Outcome, after_refusal, decide
from gateway.cluster.ownership import Cluster, Route
from gateway.cluster.relayed_reply import RelayedReply
from gateway.errors import unreachable
from gateway.observability.request_log import RequestLog
from session_store import StoreUnavailable
from transports.inbound.http import ClientWatch
from transports.inbound_port import Refused
from transports.peer_channel import MAX_DEFINITION_BYTES, PeerCall
from transports.replica_wire import (
    CHECKED_S,
    HEARTBEAT_S,
    PeerConnection,
    PeerConnectionLost,
    PeerConnectionPool,
    PeerRefused,
    PeerTimedOut,
)
from transports.tasks import Tasks

__all__ = ["PeerRequests"]

logger = logging.getLogger(__name__)

_SURELY_S: Final = HEARTBEAT_S + 0.1
"""A lease that was renewed so long after the last frame of a peer was renewed after the peer fell silent: had it stood
still since then, its last frame would have come up to a heartbeat earlier."""

_HOLD_WITHIN_S: Final = 0.5
_AGAIN_S: Final = 0.1
"""Between two tries, while the lease of a peer is valid whose address closes connections."""


class PeerRequests:
    """Sends requests to peers. Decides nothing about sessions."""

    def __init__(self, cluster: Cluster, envelopes: Envelopes, log: RequestLog) -> None:
        self._cluster = cluster
        self._envelopes = envelopes
        self._log = log
        self._pool = PeerConnectionPool(envelopes.peer_keys, envelopes.tls)
        self._channels = Channels(self._pool, envelopes)
        self._looks = Tasks("looks at leases")

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
        is_silent = has_lost = False
        while not copies.is_late:
            began = monotonic()
            try:
                sent = await self._sent(peer, copies, timed_out_since if is_silent else None)
            except PeerRefused:
                return Outcome.GONE
            except (PeerTimedOut, PeerConnectionLost) as failure:
                timed_out_since, is_silent = timed_out_since or began, isinstance(failure, PeerTimedOut)
                if (outcome := await self._before_next(peer, timed_out_since, is_lost=not is_silent)) is not None:
                    return outcome
                continue
            ended = sent if isinstance(sent, Outcome) else await self._watched(sent, peer, copies, reply)
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
            if (outcome := await self._before_next(peer, timed_out_since, is_lost=True)) is not None:
                return outcome
        return Outcome.UNKNOWN

    async def _sent(self, peer: Peer, copies: Copies, since: float | None) -> PeerConnection | PeerCall | Outcome:
        """Send a copy, as `Copies.send`. The lease of a peer that has been silent `since` then is looked at meanwhile:
        it was asked to renew it, and the time-out of this try comes a second later. It may decide the outcome."""
        if since is None:
            return await copies.send()
        sending = asyncio.ensure_future(copies.send())
        try:
            while not (await asyncio.wait((sending,), timeout=CHECKED_S))[0]:
                lease, silent_s = await self._look(peer, monotonic() - since), monotonic() - since
                if not sending.done() and (outcome := self._judged(lease, silent_s)) is not None:
                    return outcome
            return sending.result()
        finally:
            sending.cancel()  # what has not been sent by now is not

    async def _before_next(self, peer: Peer, since: float, *, is_lost: bool) -> Outcome | None:
        """The outcome for a peer that has not been reached `since` then, by a time-out or, if `is_lost`, because
        connections to it end. None: it is time for the next try."""
        outcome = await self._after_timeout(peer, monotonic() - since, is_lost=is_lost)
        if outcome is None and is_lost:
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

    async def _after_timeout(self, peer: Peer, silent_s: float, *, is_lost: bool = False) -> Outcome | None:
        """The outcome for a peer that has been silent for so long, or closes connections (`is_lost`). None: wait on.
        Raises `Refused`: it is unknown, and the client has waited long enough."""
        return self._judged(await self._look(peer, 0.0 if is_lost else silent_s), silent_s)

    def _judged(self, lease: Lease, silent_s: float) -> Outcome | None:
        decision = decide(lease, for_a_lease=silent_s >= LEASE_S)
        if decision is Liveness.UNDECIDED:
            raise unreachable()
        return _OUTCOMES[decision]

    async def _look(self, peer: Peer, silent_s: float) -> Lease:
        """The state of the lease of a peer that has been silent for so long. Requests that ask at once share a look."""
        try:
            return await self._lease_of(peer, silent_s)
        except StoreUnavailable:
            return Lease.UNKNOWN

    async def _lease_of(self, peer: Peer, silent_s: float) -> Lease:
        silent_since, own = monotonic() - silent_s, self._cluster.lease
        asked_at, age_s = await self._looks.share(peer.replica, functools.partial(self._age_of, peer.replica))
        if age_s is None:
            return Lease.EXPIRED if own.trusts_expired else Lease.UNKNOWN
        if age_s >= DOUBT_S and own.doubt(peer.replica):
            return Lease.OLD
        if asked_at - age_s - silent_since >= _SURELY_S:
            return Lease.RENEWED
        await self._cluster.have_beat(peer.replica)
        return Lease.VALID

    async def _age_of(self, replica: str) -> tuple[float, float | None]:
        """When the store was asked for the age of that replica's lease, and the age."""
        return monotonic(), await self._cluster.lease_age(replica)

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
            copies.last_refused()
        if outcome is None:
            logger.error("another gateway on this store refuses requests of this one: compare their keys and clocks")
            raise unreachable()
        if refusal is Refusal.SEEN:
            reply.start()
        return outcome

    async def hold(self, peers: Mapping[str, str]) -> bool:
        """Ask replicas at their addresses to take nothing from this one for a while. True: all have agreed."""
        agreed = False
        with contextlib.suppress(PeerRefused, PeerTimedOut, PeerConnectionLost, TimeoutError):
            async with asyncio.timeout(_HOLD_WITHIN_S):
                agreed = all(await asyncio.gather(*(self._held_by(Peer(*peer)) for peer in peers.items())))
        return agreed

    async def _held_by(self, peer: Peer) -> bool:
        connection = await self._pool.open(peer.address, peer.replica)
        try:
            connection.ask(self._envelopes.hold(peer.replica, self._cluster.replica), b"")
            kind, _ = await connection.next()
        except BaseException:
            connection.close()
            raise
        connection.done()
        return kind == b"e"

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()
        self._pool.close()


_OUTCOMES: Final = {
    Liveness.WAIT: None,
    Liveness.GONE: Outcome.GONE,
    Liveness.CUT_OFF: Outcome.CUT_OFF,
    Liveness.SILENT: Outcome.SILENT,
}
