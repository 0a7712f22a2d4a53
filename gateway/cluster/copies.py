"""Sends a request to a peer: on the channel to it if the request is small, else on a connection of its own."""

import math
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

import msgspec

from gateway.cluster.channels import Channels, Peer
from gateway.cluster.envelope import COPIES_S, CallFacts, Envelopes, ForwardedRequest, Headers, common_of
from gateway.cluster.ownership import Route
from gateway.observability.logs import CORRELATION
from gateway.observability.request_log import CORRELATION_HEADER
from transports.peer_channel import MAX_DEFINITION_BYTES, SMALL_BYTES, PeerCall
from transports.replica_wire import PeerConnection, PeerConnectionPool

__all__ = ["Copies", "Ticket", "facts_of"]

_encode = msgspec.msgpack.Encoder().encode
_CORRELATION = CORRELATION_HEADER.encode()


class Ticket(NamedTuple):
    """Fetches an answer that has begun on a channel."""

    secret: str


def facts_of(route: Route, traceparent: str = "") -> bytes:
    """What a call on a channel has of its own."""
    session = route.session
    read = (session.epoch, session.version) if route.is_read else (-1, -1)
    return _encode(CallFacts(*read, CORRELATION.get(), traceparent))


class Copies:
    """One request to one peer. All copies of it have the same nonce, so the peer executes one at most."""

    def __init__(
        self,
        peer: Peer,
        request: ForwardedRequest,
        traced: Headers,
        envelopes: Envelopes,
        pool: PeerConnectionPool,
        channels: Channels,
    ) -> None:
        self._peer = peer
        self._request = request
        self._traced = traced
        self._envelopes = envelopes
        self._pool = pool
        self._channels = channels
        begun = request.route.begun
        self._begun: PeerCall | None = None if begun is None else begun.call
        self._nonce = "" if self._begun is None else self._begun.nonce
        self._first_at = math.inf if self._begun is None else self._begun.asked_at
        self._seal: Callable[[], bytes] | None = None
        self._ticket: Ticket | None = None
        self._sent: list[PeerConnection | PeerCall] = []

    @property
    def may_have_run(self) -> bool:
        """Whether the peer may have executed one of them, as far as it was heard of."""
        return any(copy.may_have_run for copy in self._sent)

    @property
    def is_late(self) -> bool:
        """Whether too much time has passed for one more copy: the peer, which remembers for a while what it has
        accepted, may take it for the first."""
        if self._begun is not None or self._ticket is not None:
            return False  # what is sent next is no copy
        return monotonic() - self._first_at >= COPIES_S

    def returned(self) -> None:
        """The peer has said that it has executed none of them, and will not."""
        self._sent.clear()

    def last_refused(self) -> None:
        """The peer has refused the last one without a look at the nonce: it may have executed another."""
        self._sent.pop()

    async def send(self) -> PeerConnection | PeerCall:
        """Send a copy.

        Raises:
            PeerRefused, PeerTimedOut: as `PeerConnectionPool.open`. Nothing was sent.
        """
        sent = await self._send()
        self._first_at = min(self._first_at, monotonic())
        self._sent.append(sent)
        return sent

    async def _send(self) -> PeerConnection | PeerCall:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun
        # Only the first: on a channel, a copy of what went out on a connection would have another nonce.
        is_first = self._ticket is None and not self._nonce and self._seal is None
        if is_first and (call := await self._on_channel()) is not None:
            self._nonce = call.nonce
            return call
        connection = await self._pool.open(self._peer.address, self._peer.replica)
        if self._ticket is not None:
            connection.ask(self._envelopes.ticket(self._peer.replica, self._ticket.secret), b"")
            return connection
        if self._seal is None:
            self._seal = self._envelopes.sealing(self._peer.replica, self._request, self._traced, self._nonce)
        connection.ask(self._seal(), self._request.body)
        return connection

    def fetch(self, ticket: Ticket) -> None:
        """Fetch the answer next, which goes on at a connection of its own."""
        self._ticket = ticket

    async def _on_channel(self) -> PeerCall | None:
        """Send the request on the channel to the peer. None: it is not for a channel, or there is none."""
        request = self._request
        if request.method != "POST" or request.again or len(request.body) > SMALL_BYTES:
            return None
        headers = [*request.headers, *(header for header in self._traced if header[0] != _CORRELATION)]
        common = common_of(request.route, request.path, headers, secure=request.secure)
        if len(common) > MAX_DEFINITION_BYTES or (channel := await self._channels.open(self._peer)) is None:
            return None
        return channel.ask(common, facts_of(request.route), request.body)
