"""From which address a client comes: what it is counted by where nobody has said who it is. Pure."""

import functools
import ipaddress
from collections.abc import Container, Mapping

__all__ = ["client_network"]

_MOST_HOPS = 16
"""Of `X-Forwarded-For`, from its end: each proxy appends one, and what stands before ours is the client's to choose."""


def client_network(peer: str, headers: Mapping[str, str], proxies: Container[str]) -> str:
    """The network of the client: of the peer, or where that is a trusted proxy, of the last address in
    `X-Forwarded-For` that is not one. An IPv4 address, or the /64 that one IPv6 subscriber has (RFC 6177).

    A text that is no address ends the search: the proxy before it is as far as anybody vouches for.
    """
    if peer not in proxies:
        return _network(peer)
    found = peer
    for hop in reversed(headers.get("x-forwarded-for", "").rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]):
        address = _bare(hop.strip())
        if not address:
            break
        found = address
        if address not in proxies:
            break
    return _network(found)


def _bare(hop: str) -> str:
    """An address without a port or brackets; empty for anything else."""
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
def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""  # a Unix socket: on this machine
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
