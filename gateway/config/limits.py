"""What one client or one server may cost, as an operator sets it: units in the names, reasons beside the defaults."""

from typing import Annotated

from pydantic import Field

from gateway.config.model import Frozen, Seconds
from transports.inbound.limits import Limits, room_for_connections

__all__ = ["LimitSettings"]


class LimitSettings(Frozen):
    """What one client or one server may cost us."""

    body_bytes: Annotated[int, Field(ge=1_024)] = 4 << 20
    """Body of a request; 413 beyond."""
    line_bytes: Annotated[int, Field(ge=1_024)] = 16 << 20
    """Message of a server; a larger one is thrown away and its call fails."""
    exchanges: Annotated[int, Field(ge=1)] = 256
    """Calls of one session in flight; 429 beyond."""
    in_flight_bytes: Annotated[int, Field(ge=1_024)] = 32 << 20
    """Bodies of one session's calls in flight, together; 429 beyond. Each is kept until its call is answered: eight of
    the largest size. Bodies up to 64 KiB do not count, and a single one is never refused for this."""
    all_in_flight_bytes: Annotated[int, Field(ge=65_536)] = 512 << 20
    """Bodies that are being read or whose requests have no answer yet, of all clients together, for each worker; 429
    beyond. One client network gets half of it. Bodies up to 64 KiB do not count. Leave the process twice as much."""
    start_timeout_s: Seconds = 30.0
    """A server's start, handshake included."""
    call_timeout_s: Seconds = 600.0
    """A call, counted from its last sign of life. SDK clients give up after 300 s."""
    poll_after_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Close a call's event stream after so long, for load balancers that cut long responses; clients of 2025-11-25 read
    on with `Last-Event-ID`. 0: it stays open."""
    shutdown_grace_s: Seconds = 2.0
    """Twice in a child's end: after its stdin was closed, and after SIGTERM."""
    parked_s: Seconds = 55.0
    """How long a call waits for a 2026-07-28 client that was asked something by a server of the other era. Servers give
    up on their own after 60 s or so."""
    head_bytes: Annotated[int, Field(ge=1_024)] = 64 << 10
    """Request line and headers of a request; 431 beyond. More than browsers and proxies send."""
    headers: Annotated[int, Field(ge=8)] = 128
    """Headers of a request; 431 beyond. Each of them costs some work, however short it is."""
    head_timeout_s: Seconds = 10.0
    """From a request's first byte to the end of its headers, and from a connection's start to its first byte; then it
    is cut. Honest clients send them at once."""
    body_timeout_s: Seconds = 30.0
    """For each 64 KiB of a request's body, and for what is left of it; 408 beyond. A slow upload goes on as long as it
    likes: at 2 KiB a second and more."""
    idle_timeout_s: Seconds = 75.0
    """How long a connection stays without a request: longer than load balancers keep theirs (60 s is common), so that
    they close it and no request is lost."""
    write_timeout_s: Seconds = 30.0
    """A client that takes nothing of what was written to it for so long is cut, whatever kind of answer it is, and what
    it did not read is thrown away."""
    connections: Annotated[int, Field(ge=0)] = 0
    """Connections in all, for each worker. 0: half of the files this process may open, since servers of sessions need
    some as well. When all are taken, the connection that has been idle longest makes room; if none is idle, the new one
    gets 503."""
    peer_connections: Annotated[int, Field(ge=0)] = 0
    """Connections from one address (IPv6: one /64 network), so that no single client fills the gateway; 503 beyond. 0:
    half of `connections`. Trusted proxies do not count, nor, where none are configured, peers on this machine."""
    batch_messages: Annotated[int, Field(ge=1, le=1_024)] = 64
    """Messages in one JSON-RPC batch; a larger one is refused before any of it starts."""
    name_chars: Annotated[int, Field(ge=16)] = 256
    """Names that clients give: of tools, prompts, methods, clients."""
    uri_chars: Annotated[int, Field(ge=256)] = 8 << 10
    """URIs that clients give. Browsers and proxies take no more either."""
    record_bytes: Annotated[int, Field(ge=4_096)] = 64 << 10
    """What a session's record keeps of what its client announced: its `initialize` parameters, its subscriptions."""

    @property
    def before_authentication(self) -> Limits:
        """As the listeners take them."""
        connections = self.connections or room_for_connections()
        return Limits(
            head_bytes=self.head_bytes,
            headers=self.headers,
            head_timeout_s=self.head_timeout_s,
            body_bytes=self.body_bytes,
            body_timeout_s=self.body_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            write_timeout_s=self.write_timeout_s,
            connections=connections,
            peer_connections=self.peer_connections or max(1, connections // 2),
            batch_messages=self.batch_messages,
            name_chars=self.name_chars,
            uri_chars=self.uri_chars,
            record_bytes=self.record_bytes,
        )
