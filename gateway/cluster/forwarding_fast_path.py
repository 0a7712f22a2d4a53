"""Forward repeated calls to the owner of their session on a fast path, from the connection they arrive on.

A call that was forwarded without the fast path stores a `ForwardingPath` with the HTTP head of its request. Calls that
differ from it only in id, progress token and arguments take that path. The owner decides everything about the session.
An unusual call is not begun on the fast path. If a sent call turns out unusual, the `Forwarder` continues it.
See docs/adr/0040-the-fast-path.md.
"""

import logging
from collections.abc import Callable
from time import monotonic, time

from msgspec.structs import replace

from gateway.cluster.forwarded_answer import message_in
from gateway.cluster.ownership import Route
from gateway.cluster.requests_to_peers import PeerRequests
from gateway.context.session_facts import new_correlation_id, trace_id_of
from gateway.observability.logs import CLIENT, CORRELATION
from gateway.policy.rate_limits import RateLimits
from transports.inbound_port import Answer, AnsweringConnection, CallValues, OwnedByPeer, Request
from transports.jsonrpc import is_one_value
from transports.peer_channel import PeerCall

logger = logging.getLogger(__name__)


class ForwardingPath:
    """Forward the repeated calls of one connection to one owner (`transports.inbound_port.CallPath`). `route` leads to
    the owner, for their HTTP head and caller. `is_here` gets a session id and returns True if the session is live on
    this replica."""

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
        """Send no more calls: their sender has to be authenticated again."""
        self._until = 0.0

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        values: CallValues,
        trace: bytes = b"",
        correlation: str = "",
    ) -> "ForwardedCall | None":
        """Send a call to the owner. Return None if nothing was done: the call cannot take the fast path."""
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
    """A call that was sent to the owner and is not answered yet (`transports.inbound_port.CallInFlight`)."""

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
        """Send the owner's answer to the client. If it is not one small message, the `Forwarder` continues the call."""
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
        """Leave the fast path: the `Forwarder` continues the call. Does nothing the second time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fall_back(self._began, self._elsewhere)

    def _elsewhere(self, request: Request) -> Answer:
        """Raise `OwnedByPeer`, as without the fast path, so that the `Forwarder` continues the request. Must run in the
        request's own `contextvars` context."""
        CLIENT.set(request.client)
        CORRELATION.set(self._correlation)
        raise OwnedByPeer(replace(self._route, begun=self._peers.answer_to(self._call, self._route)))
