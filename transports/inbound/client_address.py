"""The network of a client, by which connections and anonymous clients are counted. Pure."""

import functools
import ipaddress
from collections.abc import Container, Mapping

__all__ = ["client_network", "network_of"]

_MOST_HOPS = 16
"""How many addresses of `X-Forwarded-For` are read, from its end: each proxy appends one, clients choose the rest."""


def client_network(peer: str, headers: Mapping[str, str], proxies: Container[str]) -> str:
    """The client's `network_of`: of the peer, or behind trusted proxies, of the last address in `X-Forwarded-For` that
    is not a trusted proxy's. A text there that is no address ends the search: no trusted proxy vouches for what is
    before it.
    """
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
def network_of(address: str) -> str:
    """A subscriber's network: the IPv4 address, or the /64 network of an IPv6 address (RFC 6177). Empty for a text
    that is no address, such as the peer of a Unix socket."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed.packed[:8] + bytes(8), 64)))
    return str(parsed)
