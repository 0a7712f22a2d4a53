"""Decide what a walled process may connect to: addresses, networks, ports and names. Pure: no I/O, knows no sockets.

The gate in the reaper asks with an address and a port, the gateway's resolver with a name. Addresses decide. A name
only makes public addresses reachable, so a name that has a private address opens nothing.
"""

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from transports.upstream.walls.wall_specification import Reach

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_LEARNT: Final = 2_048
"""Maximum number of addresses that are reachable because an allowed name was resolved to them. A new one replaces the
oldest."""

_KINDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    # Metadata services first: some of them have addresses within wider networks, some have public ones.
    (
        "metadata",
        ("169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    ),
    ("metadata", ("fd00:ec2::254/128", "fd20:ce::254/128")),
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10")),
    # IANA's registries of special-purpose addresses.
    ("reserved", ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24")),
    ("reserved", ("203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "3fff::/20", "64:ff9b:1::/48")),
)
_SPECIAL: Final = tuple((kind, ipaddress.ip_network(n)) for kind, networks in _KINDS for n in networks)
_GLOBAL_V6: Final = ipaddress.ip_network("2000::/3")
"""The only part of the IPv6 address space that is assigned for public use."""

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_LOOPBACK: Final = {4: ipaddress.ip_address("127.0.0.1"), 6: ipaddress.ip_address("::1")}
_ONLY_BY_NAME: Final = {"metadata", "loopback", "link-local", "multicast"}
"""Kinds of addresses that an entry with a wide network does not open: "0.0.0.0/0" is hardly meant to reach the metadata
service."""


def unwrapped(address: Address) -> Address:
    """Return the address that a connection to this one finally reaches: the IPv4 address inside an IPv6 address;
    loopback for the unspecified address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return unwrapped(inner)
        if address.scope_id is not None:
            return unwrapped(ipaddress.IPv6Address(int(address)))
    return _LOOPBACK[address.version] if address.is_unspecified else address


def kind_of(address: Address) -> tuple[str, Network | None]:
    """Return the kind of an unwrapped address ("loopback", "private", "public", ...), and the special network that
    contains the address; None if there is none."""
    for kind, network in _SPECIAL:
        if address in network:
            return kind, network
    return ("public", None) if address.version == 4 or address in _GLOBAL_V6 else ("reserved", None)


def shown(address: Address, port: int) -> str:
    """Return an address with its port, as it is written in `sandbox.reach`."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One entry of `sandbox.reach`: a name, a wildcard, an address or network, or "*"."""

    name: str = ""
    """The name; for the wildcard "*.example.com", ".example.com". Empty if the entry has none."""
    network: Network | None = None
    """The network; an address is a network of one. None if the entry has none."""
    port: int | None = None
    """The only port that the entry allows; None: all ports."""
    is_everything: bool = False
    """True for "*": every public address and every name."""

    def has_name(self, name: str) -> bool:
        """Return True if the entry matches the name, which is in ASCII, in lower case and without final dot."""
        if self.name.startswith("."):  # the label in front must not be empty, and the bare domain is not meant
            return name.endswith(self.name) and len(name) > len(self.name)
        return self.is_everything or (bool(self.name) and name == self.name)

    def has_address(self, address: Address, port: int, special: Network | None) -> bool:
        """Return True if the entry is an address or network that contains this address, and allows the port. If
        `special` is given, the special network of the address (`kind_of`), an entry that is larger does not count."""
        network = self.network
        if network is None or network.version != address.version or self.port not in (None, port):
            return False
        if special is not None and not network.subnet_of(special):  # type: ignore[arg-type]  # both are of one IP version
            return False
        return address in network


def destination(text: str) -> Destination:
    """Read an entry of `sandbox.reach`: "api.example.com:443", "*.example.com", "10.1.0.0/16:5432", "[fd00::1]:443".

    Raises:
        ValueError: the text is no such entry; the message says why.
    """
    host, port = _split(text.strip())
    if host == "*":
        return Destination(is_everything=True, port=port)
    if (network := _network(host)) is not None:
        return Destination(network=network, port=port)
    wildcard = host.startswith("*.")
    name = _name(host[2:] if wildcard else host, text)
    if wildcard and "." not in name:
        raise ValueError(f"{text!r}: a wildcard for a whole top-level domain")
    return Destination(name=f".{name}" if wildcard else name, port=port)


def canonical(name: str) -> str:
    """Return a DNS name in the form for comparisons: lower case, no final dot."""
    return name.lower().removesuffix(".")


def _split(text: str) -> tuple[str, int | None]:
    host, bracket, rest = text.partition("]")
    if bracket:  # "[fd00::1]:443"; "[fd00::/8]:443" is taken as well
        if not host.startswith("[") or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r}: write an IPv6 address with a port as [ADDRESS]:PORT")
        host, port = host[1:], rest[1:]
    elif text.count(":") > 1:
        return text, None
    else:
        host, _, port = text.partition(":")
    if not port and text.endswith(":"):
        raise ValueError(f"{text!r}: no port after the colon")
    if not port:
        return host, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{text!r}: {port!r} is not a port from 1 to 65535")
    return host, int(port)


def _network(host: str) -> Network | None:
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        if "/" in host or ":" in host or host.replace(".", "").isdigit():
            raise ValueError(
                f"{host!r} is neither an address nor a network; a network has no bits set after its prefix"
            ) from None
        return None
    if network.version == 6 and network.prefixlen >= 96:
        inner = network.network_address.ipv4_mapped
        if inner is not None:
            return ipaddress.ip_network((inner, network.prefixlen - 96))
    return network


def _name(host: str, text: str) -> str:
    """Return a host name in lower case. Raises `ValueError` about the whole entry `text` if it is not a host name."""
    if not host.isascii():  # two standards of IDNA disagree on which name that is
        raise ValueError(f"{text!r}: write the name in its ASCII form, as xn--...")
    name = canonical(host)
    labels = name.split(".")
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    if len(name) > 253 or not all(0 < len(label) < 64 and set(label) <= allowed for label in labels):
        raise ValueError(f"{text!r} has no name, address or network")
    return name


class ReachRules:
    """Decide what one process may connect to. `is_local` returns True for an address of this machine. `clock` is in
    seconds."""

    def __init__(self, reach: Reach, *, is_local: Callable[[Address], bool], clock: Callable[[], float]) -> None:
        self._public = reach.public
        self._entries = tuple(destination(text) for text in reach.hosts)
        self._closed = tuple(destination(text) for text in reach.refused)
        self._localhost = tuple(entry for entry in self._entries if entry.name == "localhost")
        self._is_local = is_local
        self._clock = clock
        self._learnt: dict[Address, dict[int | None, float]] = {}  # until when, for each port; None: for all ports

    def learn(self, address: str, ports: Iterable[int] | None, seconds: float) -> None:
        """Make an address of an allowed name reachable for some seconds, on these ports (None: on all)."""
        key = unwrapped(ipaddress.ip_address(address))
        times = self._learnt.pop(key, {})  # so that it becomes the newest
        self._learnt[key] = {**times, **dict.fromkeys((None,) if ports is None else ports, self._clock() + seconds)}
        if len(self._learnt) > MAX_LEARNT:
            del self._learnt[next(iter(self._learnt))]

    def refusal(self, given: Address, port: int) -> str | None:
        """Return why the process may not connect to an address and port, in a few words; None if it may."""
        address = unwrapped(given)
        kind, special = kind_of(address)
        if self._is_closed(address, port, kind):
            return "the gateway listens there"
        if kind == "loopback" and any(entry.port in (None, port) for entry in self._localhost):
            return None
        within = special if kind in _ONLY_BY_NAME else None
        if any(entry.has_address(address, port, within) for entry in self._entries):
            return None
        if kind != "public":
            return f"a {kind} address"
        times, now = self._learnt.get(address, {}), self._clock()
        is_learnt = times.get(port, 0.0) > now or times.get(None, 0.0) > now
        if not (is_learnt or self._is_listed(port)):
            return "not listed"
        return "an address of this machine" if self._is_local(address) else None

    def _is_closed(self, address: Address, port: int, kind: str) -> bool:
        for entry in self._closed:
            if entry.port not in (None, port):
                continue
            if entry.has_address(address, port, None):
                return True
            # A listener on 0.0.0.0 or :: has every address of this machine. Which of them a name has is not asked.
            everywhere = entry.network is None or entry.network.network_address.is_unspecified
            if everywhere and (kind == "loopback" or self._is_local(address)):
                return True
        return False

    def _is_listed(self, port: int) -> bool:
        return self._public or any(entry.is_everything and entry.port in (None, port) for entry in self._entries)


class NameRules:
    """Decide which names are resolved for a process, and on which ports their addresses are then reachable."""

    def __init__(self, reach: Reach) -> None:
        self._all = reach.names
        self._entries = tuple(entry for entry in map(destination, reach.hosts) if entry.name or entry.is_everything)

    def is_resolved(self, name: str) -> bool:
        """Return True if DNS queries of the process for this name are answered. The name is in its ASCII form."""
        return self._all or any(entry.has_name(canonical(name)) for entry in self._entries)

    def ports(self, name: str) -> frozenset[int] | None:
        """Return the ports that are open on the name's addresses: empty if the name is not listed, None for all
        ports."""
        found = [entry.port for entry in self._entries if entry.has_name(canonical(name))]
        return None if None in found else frozenset(port for port in found if port is not None)
