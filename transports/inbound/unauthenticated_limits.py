"""Limit the cost of clients that have not authenticated: define the limits, count the bytes of request bodies, and find
the network by which connections and anonymous clients are counted.

Pure, except that it reads this process's limit of open files. The composition root fills `Limits` from the settings.
"""

import enum
import functools
import ipaddress
import resource
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final

from transports.inbound_port import Refused

MAX_ID_CHARS: Final = 256
"""The longest request id or progress token. The gateway repeats both. SDKs send numbers and UUIDs."""

MAX_CURSOR_BYTES: Final = 8 << 10
"""The longest cursor of a list. The gateway's cursors contain those of the server."""

MAX_FILTER_BYTES: Final = 64 << 10
"""The longest filter of a `subscriptions/listen`, which is kept as long as its stream is open."""

MAX_LABEL_CHARS: Final = 512
"""The longest `Host`, `Origin` or `Last-Event-ID`: a host name has 253 characters at most (RFC 1035 §2.3.4)."""

_KEPT_BACK: Final = 128
"""File descriptors reserved for the store, logs, listeners and libraries."""

_MOST: Final = 65_536
"""Maximum number of connections that a process accepts, however many files it may open."""


class Limited(enum.StrEnum):
    """The limit that ended or refused a connection or a request. The values are labels of a metric."""

    FRAMING = "framing"
    HEAD_SIZE = "head_size"
    HEAD_TIME = "head_time"
    BODY_SIZE = "body_size"
    BODY_TIME = "body_time"
    WRITE_TIME = "write_time"
    PIPELINE = "pipeline"
    CONNECTIONS = "connections"
    PEER_CONNECTIONS = "peer_connections"
    BATCH = "batch"
    NAME = "name"
    URI = "uri"
    RECORD = "record"
    IN_FLIGHT = "in_flight"
    """The limit on the bytes of bodies of calls that have no answer yet."""
    MEMORY = "memory"
    """The limit on the memory of server processes."""
    HOP = "hop"
    """A limit of the listener for other replicas."""


Refusals = Counter[Limited]
"""The number of refusals by kind: `refusals[Limited.BATCH] += 1`. There is one such counter in a process,
`Metrics.limited`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one process. A limit that operators can set has the setting's default; `LimitSettings` says why.

    Times are in seconds, sizes in bytes, lengths of texts in characters after decoding.
    """

    head_bytes: int = 64 << 10
    headers: int = 128
    head_timeout_s: float = 10.0
    """How long a connection may take to send its first request head, or the rest of a head."""
    body_bytes: int = 4 << 20
    body_timeout_s: float = 30.0
    """How long a connection may take to send another 64 KiB of a body, or its end."""
    idle_timeout_s: float = 75.0
    """How long a connection may wait for its next request."""
    write_timeout_s: float = 30.0
    """How long a client may take none of the bytes that wait for it."""
    connections: int = 1_024
    peer_connections: int = 512
    """The most connections from one address."""
    pipelined: int = 16
    """The most requests of a connection that wait behind the one that is being served."""
    batch_messages: int = 64
    """The most messages of a JSON-RPC batch. A larger batch is refused before any of its messages is executed."""
    name_chars: int = 256
    """The longest name that a client sends: of a tool, a prompt, a method or itself."""
    uri_chars: int = 8 << 10
    """The longest URI that a client sends. Browsers and proxies have similar limits."""
    record_bytes: int = 64 << 10
    """The most bytes of client data in a session's record: the parameters of `initialize` and the subscriptions."""


def room_for_connections() -> int:
    """Return the number of connections that this process may accept: half of its file descriptors, because servers need
    some."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(14, min(_MOST, (soft - _KEPT_BACK) // 2))


SMALL_BODY_BYTES: Final = 64 << 10
"""The largest body in bytes that is not counted in `BodyBudget`: the limits on connections and calls bound small bodies
well enough."""


class BodyBudget:
    """Count the bytes of all request bodies in this process, and refuse more than `most`. A body counts from its first
    bytes until its request is answered: this may take minutes, and in the legacy era longer than the connection lasts.
    The bodies of one network may have half of `most`, so that others have room."""

    __slots__ = ("_by_network", "_bytes", "_most", "_refusals", "_refuse")

    def __init__(self, most: int, refusals: Refusals, refuse: Callable[[str], Refused]) -> None:
        self._most = most
        self._refusals = refusals
        self._refuse = refuse
        self._bytes = 0
        self._by_network: Counter[str] = Counter()

    def replace(self, most: int) -> None:
        """Set the limit for further bodies to `most` bytes."""
        self._most = most

    def reserve(self, network: str, size: int, mine: int) -> None:
        """Count `size` more bytes of a request that has `mine` bytes counted already. If `network` is empty, only the
        total is limited.

        Raises:
            Refused: 429, other bodies use up the room. A body is never refused because of its own size alone.
        """
        if self._bytes > mine and self._bytes + size > self._most:
            self._refusals[Limited.IN_FLIGHT] += 1
            raise self._refuse("this gateway")
        theirs = self._by_network[network] if network else 0
        if theirs > mine and theirs + size > self._most // 2:
            self._refusals[Limited.IN_FLIGHT] += 1
            raise self._refuse("your address")
        self._bytes += size
        if network:
            self._by_network[network] += size

    def release(self, network: str, size: int) -> None:
        """Release the bytes of an answered request."""
        self._bytes -= size
        if network:
            self._by_network[network] -= size
            if not self._by_network[network]:
                del self._by_network[network]


class CountedBody:
    """Count the bytes of one request's body in `BodyBudget`, as those of the client's network."""

    __slots__ = ("_body_budget", "_counted", "_network")

    def __init__(self, body_budget: BodyBudget, network: str) -> None:
        self._body_budget = body_budget
        self._network = network
        self._counted = 0

    def count(self, size: int) -> None:
        """Record that `size` bytes of the body were read so far, more than `SMALL_BODY_BYTES`. Raises `Refused` (429):
        there is no room for them."""
        self._body_budget.reserve(self._network, size - self._counted, self._counted)
        self._counted = size

    def release(self) -> None:
        """Release the counted bytes, once the request is answered or given up."""
        if self._counted:
            self._body_budget.release(self._network, self._counted)
            self._counted = 0


_MOST_HOPS = 16
"""The most addresses of `X-Forwarded-For` that are read, from its end: each proxy adds one, clients choose the rest."""


def client_network(peer: str, headers: Mapping[str, str], proxies: Container[str]) -> str:
    """Return the client's network (`network_of`). The client is `peer`, unless that is the address of a trusted proxy.
    Then `X-Forwarded-For` is read from its end: the client is the first address found that is no trusted proxy's. A
    text that is no address ends the search, because no trusted proxy vouches for what is before it."""
    if peer not in proxies:
        return network_of(peer)
    found = peer
    for hop in reversed(headers.get("x-forwarded-for", "").rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]):
        address = _bare(hop.strip())
        if not address:
            break
        found = address
        if address not in proxies:
            break
    return network_of(found)


def _bare(hop: str) -> str:
    """Return an address without its port and brackets; empty if `hop` is not an address."""
    if len(hop) > 64:
        return ""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return ""


@functools.lru_cache(maxsize=4_096)
def network_of(address: str) -> str:
    """Return a subscriber's network: the IPv4 address, or the /64 network of an IPv6 address (RFC 6177); empty for a
    text that is no address, such as the peer of a Unix socket."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
