"""Send requests to peers (other replicas), relay the answers to clients, and decide if a peer that fails is dead.

A sent request may have taken effect, unless the peer answers that it has not. Copies may be sent to the same peer,
which executes only one of them. Copies are sent only for some seconds, because a peer remembers nonces for a limited
time. A request that goes to another replica is marked as one that may have taken effect.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec

from gateway.cluster.forwarded_answer import ForwardedAnswer, RelayedReply
from gateway.cluster.forwarded_request_envelope import CLAIM, COPIES_S, GREETING, HOLD, Envelopes, Refusal, SharedFacts
from gateway.cluster.lease_validity import DOUBT_S, LEASE_S
from gateway.cluster.ownership import Cluster, Route
from gateway.cluster.takeover_decision import Lease, PeerOutcome, decide
from gateway.errors import unreachable
from gateway.observability.request_log import CORRELATION_HEADER, RequestLog
from session_store import Session, StoreUnavailable
from transports.background_tasks import Tasks
from transports.inbound.http_requests_and_responses import ClientWatch
from transports.inbound_port import HeaderList, Refused
from transports.peer_channel import (
    CHECKED_S,
    PeerCall,
    PeerChannel,
    PeerConnectionLost,
    PeerOtherKeys,
    PeerRefused,
    PeerTimedOut,
    PeerUnproven,
    open_channel,
)
from transports.peer_frames import HEARTBEAT_S, MAX_DEFINITION_BYTES, MAX_HEAD_BYTES, LogLimit

logger = logging.getLogger(__name__)

_SURELY_S: Final = HEARTBEAT_S + 0.1
"""Minimum seconds from a silent peer's last frame to a renewal of its lease that proves that the peer still runs. A
connected peer sends a frame at each heartbeat."""

_HOLD_WITHIN_S: Final = 0.5
_AGAIN_S: Final = 0.1
"""Pause between two tries, if a peer's address closes connections while its lease is valid."""

_CORRELATION: Final = CORRELATION_HEADER.encode()


class Peer(NamedTuple):
    """Another replica, and the HOST:PORT of its listener."""

    replica: str
    address: str


class ForwardedRequest(msgspec.Struct, frozen=True):
    """A client's request to forward: its route, its body, and the facts that are sent beside the body."""

    route: Route
    common: SharedFacts
    body: bytes


class Channels:
    """Keep the channels (connections) to peers. One channel of each peer takes new calls; a full channel stays open
    until its calls have ended."""

    def __init__(self, envelopes: Envelopes) -> None:
        self._envelopes = envelopes
        self._channels: dict[str, PeerChannel] = {}
        self._full: set[PeerChannel] = set()
        self._opening = Tasks("channels to peers")
        self._unproven = LogLimit()

    def ready(self, replica: str) -> PeerChannel | None:
        """Return the open channel to a peer if it takes one more call and the peer has sent a frame recently; else
        None."""
        channel = self._channels.get(replica)
        return channel if channel is not None and channel.has_room and channel.is_heard else None

    async def open(self, peer: Peer) -> PeerChannel:
        """Return a channel with room for one more call, to a peer that has just sent a frame. The caller must send the
        call before it awaits anything.

        Raises:
            PeerRefused, PeerTimedOut, PeerConnectionLost: no connection could be made. No request was sent.
        """
        while True:
            channel = self._channels.get(peer.replica)
            if channel is None or not channel.has_room:
                await self._opening.share(peer, functools.partial(self._open, peer))
                continue  # other waiting calls may have filled it
            if not channel.is_heard:
                try:
                    await channel.hear()
                except PeerConnectionLost:
                    continue
            if channel.has_room:
                return channel

    async def _open(self, peer: Peer) -> None:
        try:
            channel = await open_channel(peer.address, peer.replica, self._envelopes.peer_keys, self._envelopes.tls)
        except PeerUnproven as unproven:
            if self._unproven.allows():
                logger.warning("replica %s is not reached at %s: %s", peer.replica, peer.address, unproven.why)
            raise
        before = self._channels.get(peer.replica)
        self._full = {full for full in (*self._full, before) if full is not None and full.is_open}
        self._channels = {known: at for known, at in self._channels.items() if at.is_open}
        self._channels[peer.replica] = channel

    def close(self) -> None:
        for channel in (*self._channels.values(), *self._full):
            channel.close()


class Copies:
    """Send one request to one peer, and send it again if no answer comes. Each later copy names the first copy that may
    have arrived, so that the peer executes at most one."""

    def __init__(
        self, peer: Peer, request: ForwardedRequest, traced: HeaderList, envelopes: Envelopes, channels: Channels
    ) -> None:
        self._peer = peer
        self._request = request
        self._envelopes = envelopes
        self._channels = channels
        self._begun: PeerCall | None = None if request.route.begun is None else request.route.begun.call
        self._sent: list[PeerCall] = []
        headers = [*request.common.headers, *(header for header in traced if header[0] != _CORRELATION)]
        self._common = msgspec.structs.replace(request.common, headers=headers).packed()

    @property
    def may_have_run(self) -> bool:
        """Return True if the peer may have executed a copy: one was sent, and no frame of the peer shows that it was
        not executed."""
        return self._first is not None

    @property
    def _first(self) -> PeerCall | None:
        return next((copy for copy in self._sent if copy.may_have_run), None)

    @property
    def is_late(self) -> bool:
        """Return True if it is too late to send another copy: the peer may have forgotten the first one, and would then
        execute both."""
        first = self._first
        return first is not None and monotonic() - first.asked_at >= COPIES_S

    def none_executed(self) -> None:
        """Record the peer's answer that it has executed no copy, and will execute none."""
        self._sent.clear()

    def last_refused(self) -> None:
        """Record that the peer refused the last copy as invalid. It may still have executed an earlier copy."""
        self._sent.pop()

    async def send(self) -> PeerCall:
        """Send a copy of the request, and return its call. If the request was sent before (`Route.begun`), the first
        time return that call.

        Raises:
            PeerRefused, PeerTimedOut, PeerConnectionLost: the peer was not reached. Nothing was sent.
            Refused: 503, the request's head is too large for a frame.
        """
        sent, self._begun = self._begun, None
        if sent is None:
            channel, first = await self._channels.open(self._peer), self._first
            facts = self._envelopes.facts(self._request.route, copy_of=None if first is None else first.nonce)
            if len(self._common) + len(facts) > MAX_HEAD_BYTES:
                raise unreachable()
            sent = channel.ask(self._common, facts, self._request.body)
        self._sent.append(sent)
        return sent


class _GreetingReply(RelayedReply):
    """Take the answer to a greeting, for which no client waits."""

    def __init__(self) -> None:
        super().__init__(_never, _nowhere)

    async def pass_on(self, kind: bytes, payload: bytes) -> bool:
        return True


async def _never() -> Any:
    await asyncio.get_running_loop().create_future()


async def _nowhere(_: Any) -> None:
    """Discard an ASGI event of an answer for which no client waits."""


class PeerRequests:
    """Send requests to peers, and return how each request has ended, without a decision about its session."""

    def __init__(self, cluster: Cluster, envelopes: Envelopes, log: RequestLog) -> None:
        self._cluster = cluster
        self._envelopes = envelopes
        self._log = log
        self._channels = Channels(envelopes)
        self._looks = Tasks("looks at leases")

    def channel_to(self, route: Route) -> PeerChannel | None:
        """Return an open channel to the session's owner, for a POST whose HTTP head repeats an earlier one. Return None
        if no channel is open, if the head is not remembered or too large, or if calls are traced. The owner's lease is
        not read, because the owner itself checks that it owns the session."""
        memory = route.memory
        if memory is None or self._log.tracing is not None or len(memory.common) > MAX_DEFINITION_BYTES:
            return None
        return self._channels.ready(route.session.owner)

    def send(
        self, channel: PeerChannel, route: Route, traceparent: str, body: bytes, correlation: str = ""
    ) -> PeerCall:
        """Send a POST on the channel to the session's owner. For `correlation`, see `Envelopes.facts`."""
        assert route.memory is not None
        return channel.ask(route.memory, self._envelopes.facts(route, traceparent, None, correlation), body)

    def answer_to(self, call: PeerCall, route: Route) -> ForwardedAnswer:
        """Return the pending answer of the session's owner to the sent POST `call`."""
        return ForwardedAnswer(call, route, self.answered)

    def answered(self, route: Route) -> None:
        """Count an answer of the session's owner, and record that the owner can be reached."""
        self._log.metrics.forwarded["answered"] += 1
        self._cluster.owner_answered(route.session.id)

    async def ask(self, peer: Peer, request: ForwardedRequest, reply: RelayedReply) -> PeerOutcome:
        """Send a request to a peer, relay its answer to the client through `reply`, and return how the request ended.

        Raises:
            Refused: 503, the peer cannot be reached, but may still be alive.
        """
        forwarded, copies = self._log.metrics.forwarded, None
        try:
            with self._log.forwarding(request.route.session, peer.replica) as traced:
                copies = Copies(peer, request, traced, self._envelopes, self._channels)
                outcome = await self._ask(peer, copies, reply)
        except Refused:
            forwarded["unreachable"] += 1
            raise
        finally:
            if copies is not None and copies.may_have_run:
                reply.start()
        forwarded[outcome.name.lower()] += 1
        return outcome

    async def _ask(self, peer: Peer, copies: Copies, reply: RelayedReply) -> PeerOutcome:
        timed_out_since: float | None = None
        is_silent = has_lost = False
        while not copies.is_late:
            began = monotonic()
            try:
                sent = await self._sent(peer, copies, timed_out_since if is_silent else None)
            except PeerRefused:
                return PeerOutcome.GONE
            except (PeerTimedOut, PeerConnectionLost) as failure:
                timed_out_since, is_silent = timed_out_since or began, isinstance(failure, PeerTimedOut)
                if (outcome := await self._before_next(peer, timed_out_since, failure)) is not None:
                    return outcome
                continue
            ended = sent if isinstance(sent, PeerOutcome) else await self._watched(sent, peer, copies, reply)
            if ended is not None:
                return ended
            fate = await self._after_loss(peer)
            if reply.has_started or reply.has_begun or fate is PeerOutcome.GONE:
                return fate
            if not has_lost:
                has_lost = True  # perhaps the first connection was idle for too long
                continue
            # Another program may accept connections at the address of a dead peer: the lease decides.
            timed_out_since = timed_out_since or monotonic()
            if (outcome := await self._before_next(peer, timed_out_since, PeerConnectionLost())) is not None:
                return outcome
        return PeerOutcome.TIMED_OUT

    async def _sent(self, peer: Peer, copies: Copies, since: float | None) -> PeerCall | PeerOutcome:
        """Send a copy of the request, and return its call. `since` is the monotonic time since which the peer has been
        silent; None if it is not. If the peer is silent, check its lease until the copy is sent. If the lease proves
        the peer dead or cut off, send nothing and return that outcome. Raises as `Copies.send`."""
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
            sending.cancel()  # a copy that is not sent by now must not be sent later

    async def _before_next(
        self, peer: Peer, since: float, failure: PeerTimedOut | PeerConnectionLost
    ) -> PeerOutcome | None:
        """Wait before the next try to reach a peer, and return None. If there must be no other try, return the outcome
        of the request.

        `since` is the monotonic time of the first failed try, and `failure` says how the last try has ended. Raises
        `Refused`: 503, the peer may run, and has other keys. Two replicas with different keys would claim sessions from
        each other again and again, and each claim ends the session's processes.
        """
        is_lost = not isinstance(failure, PeerTimedOut)
        outcome = await self._after_timeout(peer, monotonic() - since, is_lost=is_lost)
        if isinstance(failure, PeerOtherKeys) and outcome in (None, PeerOutcome.CUT_OFF):
            raise unreachable()
        if outcome is None and is_lost:
            await asyncio.sleep(_AGAIN_S)  # not needed after a timeout, which has taken time itself
        return outcome

    async def _watched(self, call: PeerCall, peer: Peer, copies: Copies, reply: RelayedReply) -> PeerOutcome | None:
        """Relay the answer until it ends or the client disconnects, and return the outcome. Return None if the
        connection to the peer was lost before."""
        watch = ClientWatch(reply.receive, call.close)
        try:
            return await self._relay(call, peer, copies, reply)
        except PeerConnectionLost:
            return PeerOutcome.ANSWERED if watch.left else None
        except BaseException:
            call.close()  # notifies the peer that the client has left
            raise
        finally:
            watch.stop()

    async def _relay(self, call: PeerCall, peer: Peer, copies: Copies, reply: RelayedReply) -> PeerOutcome:
        while True:
            try:
                kind, payload = await call.next()
            except PeerTimedOut:
                outcome = await self._after_timeout(peer, call.quiet_for_s)
                if outcome is not None:
                    call.close()
                    return outcome
                continue
            if kind in b"mre":
                call.done()
            if kind == b"m":
                copies.none_executed()
                return PeerOutcome.MOVED
            elif kind == b"r":
                if payload == Refusal.SEEN.value.encode():
                    reply.start()
                    return PeerOutcome.LOST  # a copy of the request has arrived, on a connection that broke
                copies.last_refused()
                logger.error("another gateway on this store refuses requests of this one: compare keys and clocks")
                raise unreachable()
            elif kind == b"e":
                await reply.end(payload)
                return PeerOutcome.ANSWERED
            elif not await reply.pass_on(kind, payload):
                call.fault("the head of an answer cannot be read")
                raise PeerConnectionLost

    # -- what a failure means for the peer

    async def _after_timeout(self, peer: Peer, silent_s: float, *, is_lost: bool = False) -> PeerOutcome | None:
        """Return the outcome of a request whose peer was silent for `silent_s` seconds, or closes connections
        (`is_lost`); None to wait longer. Raises `Refused`: 503, the peer's state is unknown, and the client has waited
        long enough."""
        return self._judged(await self._look(peer, 0.0 if is_lost else silent_s), silent_s)

    def _judged(self, lease: Lease, silent_s: float) -> PeerOutcome | None:
        outcome = decide(lease, for_a_lease=silent_s >= LEASE_S)
        if outcome is PeerOutcome.UNREACHABLE:
            raise unreachable()
        return outcome

    async def _look(self, peer: Peer, silent_s: float) -> Lease:
        """Return the state of the lease of a peer that was silent for `silent_s` seconds. Concurrent requests share one
        read of the store."""
        silent_since, own = monotonic() - silent_s, self._cluster.lease
        try:
            asked_at, age_s = await self._looks.share(peer.replica, functools.partial(self._age_of, peer.replica))
            if age_s is None:
                return Lease.EXPIRED if own.trusts_expired else Lease.UNKNOWN
            if age_s >= DOUBT_S and own.treat_as_dead(peer.replica):
                return Lease.OLD
            if asked_at - age_s - silent_since >= _SURELY_S:
                return Lease.RENEWED
            await self._cluster.ask_to_beat(peer.replica)
        except StoreUnavailable:
            return Lease.UNKNOWN
        return Lease.VALID

    async def _age_of(self, replica: str) -> tuple[float, float | None]:
        """Return when the store was asked (monotonic time), and the seconds since the replica has renewed its lease;
        None instead of the seconds if the lease has expired."""
        return monotonic(), await self._cluster.lease_age(replica)

    async def _after_loss(self, peer: Peer) -> PeerOutcome:
        """Return the outcome after the connection was lost during an answer: `GONE` if the peer refuses a new
        connection, else `LOST`."""
        try:
            await self._channels.open(peer)
        except PeerRefused:
            return PeerOutcome.GONE
        except (PeerTimedOut, PeerConnectionLost):
            pass
        return PeerOutcome.LOST

    async def hold(self, peers: Mapping[str, str]) -> bool:
        """Ask all of `peers` (addresses by name) to claim no session of this replica for a while. Return True if all
        agree."""
        agreed = False
        with contextlib.suppress(PeerRefused, PeerTimedOut, PeerConnectionLost, TimeoutError):
            async with asyncio.timeout(_HOLD_WITHIN_S):
                asked = (self._answer(Peer(*peer), HOLD, self._cluster.replica) for peer in peers.items())
                agreed = all(kind == b"h" for kind, _ in await asyncio.gather(*asked))
        return agreed

    async def ask_to_claim(self, peer: Peer, session_id: str) -> bool | None:
        """Ask a replica to claim a session. Return True if it has claimed it. Return False if it reaches the session's
        owner. Return None otherwise: for example, it may claim no session, or does not answer. A replica that does not
        answer may claim the session nevertheless."""
        with contextlib.suppress(PeerRefused, PeerTimedOut, PeerConnectionLost):
            kind, payload = await self._answer(peer, CLAIM, session_id)
            if kind == b"h":
                return True
            if payload == Refusal.OWNED.value.encode():
                return False
        return None

    async def greet_owner(self, session: Session, address: str) -> PeerOutcome:
        """Send a session's owner a greeting, to learn if it answers. Return the outcome that a request in this session
        would have. Raises as `ask`."""
        peer, greeting = Peer(session.owner, address), SharedFacts(path=GREETING, session="")
        request = ForwardedRequest(Route(session, session.principal, None), greeting, b"")
        return await self._ask(peer, Copies(peer, request, [], self._envelopes, self._channels), _GreetingReply())

    async def _answer(self, peer: Peer, path: str, about: str) -> tuple[bytes, bytes]:
        """Send a peer a request that only replicas send, such as `GREETING`. Return the kind and the content of the
        answer's first frame. The kind `h` means that the peer agrees. `about` is the name of the replica, or the id of
        the session, that is concerned."""
        channel = await self._channels.open(peer)
        call = channel.ask(SharedFacts(path=path, session=about).packed(), self._envelopes.facts(None), b"")
        try:
            return await call.next()
        finally:
            call.close()

    def close(self) -> None:
        self._channels.close()
