"""Connections: to where, and by which way."""

from typing import Any

from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import STRICT, Facts, Outcome, Row, both, keeps, no_answer, not_heard, unreached
from tests.hostile.stage import Called, Stage

_METADATA = "connect 169.254.169.254:80"
_TEN = "connect 10.20.30.40:80"
_PRIVATE = ("ten", "seventeen", "nineteen", "carrier", "unique")


def _to(*hosts: str, port: int = 80, **more: Any) -> Any:
    addresses = [ADDRESSES.get(host, host) for host in hosts]
    return lambda stage: {"hosts": addresses, "port": port, **more}


def _name(name: str, port: int = 80, times: int = 1) -> Any:
    return lambda stage: {"name": name, "port": port, "times": times}


def _row(name: str, what: str, attack: str, *hosts: str, seen: str = "", **more: Any) -> Row:
    """To hosts outside, where not one packet may come."""
    given: dict[str, Any] = {"needs": "user_notif", "facts": _to(*hosts), "refused": unreached(*hosts), **more}
    return Row(name, what, f"network.{attack}", seen=seen, **given)


def _by_name(name: str, what: str, asked: str, host: str, *, port: int = 80, times: int = 1, **more: Any) -> Row:
    """Connects by a name to a host where not one packet may come."""
    judge = unreached(host, port=port if host == "allowed" else None)  # its other port is granted
    given: dict[str, Any] = {"needs": "user_notif", **more}
    return Row(name, f"connects by a name {what}", "network.by_name", judge, facts=_name(asked, port, times), **given)


def _loopback(name: str, what: str, facts: Any, seen: str) -> Row:
    """Connects to a service of this machine, by `network.tcp`, or by a name."""
    way = "by_name" if "name" in facts(None) else "tcp"
    return _row(name, what, way, refused=not_heard("loopback"), facts=facts, seen=seen)


def _unanswered_tunnel(stage: Stage, called: Called, facts: Facts) -> Outcome:
    asked = [name for name in stage.outside.names if facts["token"] in name]
    return Outcome(not asked, f"the zone was asked for {asked[0]}" if asked else called.text[:100])


def _quiet_gateway(stage: Stage, called: Called, facts: Facts) -> Outcome:
    reached = called.got.startswith("HTTP/")
    return Outcome(not reached, "the gateway answered" if reached else called.text[:100])


_TO = [
    _row("metadata", "connects to 169.254.169.254", "tcp", "metadata", seen=_METADATA),
    _row("metadata, Node", "the same, by Node's net", "tcp", "metadata", server="node", seen=_METADATA),
    _row("metadata, fetch", "the same, by Node's fetch", "fetch", "metadata", server="node", seen=_METADATA),
    _row("metadata, shell's child", "the same, by an interpreter that a shell starts", "tcp", "metadata", way="shell",
         seen=_METADATA),
    _row("metadata by IPv6", "connects to fd00:ec2::254", "tcp", "metadata6", seen="connect [fd00:ec2::254]:80"),
    _row("mapped", "connects to ::ffff:169.254.169.254", "tcp", "metadata", facts=_to("::ffff:169.254.169.254"),
         seen=_METADATA),
    _row("NAT64", "connects to 64:ff9b::a9fe:a9fe, which a translator leads to 169.254.169.254", "tcp", "nat64",
         seen="connect"),
    _row("6to4", "connects to 2002:a9fe:a9fe::1, which a relay leads to 169.254.169.254", "tcp", "sixtofour",
         seen="connect"),
    _row("private ranges", "connects to 10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7", "tcp", *_PRIVATE, seen=_TEN),
    _loopback("loopback", "connects to a service on 127.0.0.1 and ::1", _to("127.0.0.1", "::1", port=8123),
              seen="connect 127.0.0.1:8123"),
    _loopback("loopback's other names", "connects to 127.9.9.9, 0.0.0.0, ::, ::ffff:127.0.0.1",
              _to("127.9.9.9", "0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", port=8123), seen="connect"),
    _loopback("decimal", "connects to 2130706433, 0x7f.1 and 0177.0.0.1", _name("2130706433", 8123),
              seen="connect 127.0.0.1:8123"),
    _loopback("localhost", "connects to localhost by its name", _name("localhost", 8123), seen="connect"),
    _loopback("own address", "connects to the machine's own address", _to("10.99.0.2", "fd99::2", port=8123),
              seen="connect 10.99.0.2:8123"),
    _row("gateway's listener", "connects to the gateway's own port", "tcp",
         facts=lambda stage: {"hosts": ["127.0.0.1"], "port": stage.port}, seen="connect", refused=_quiet_gateway),
    _row("public host", "connects to a host that is not listed", "tcp", "public", profiles=STRICT, works=("standard",),
         seen="connect 93.184.215.14:80"),
    _row("public host by IPv6", "the same, by IPv6", "tcp", "public6", profiles=STRICT, seen="connect"),
    _by_name("public name", "to a host that is not listed", "public.example.com", "public", profiles=STRICT,
             works=("standard",), seen="name public.example.com"),
    _by_name("other port", "to another port of the host that is listed", "allowed.example.com", "allowed", port=22,
             profiles=STRICT, seen="connect 93.184.215.99:22"),
    _by_name("name of a private host", "to 10.20.30.40", "private.example.com", "ten", seen=_TEN),
    _by_name("name of the metadata host", "to 169.254.169.254", "metadata.example.com", "metadata", seen=_METADATA),
    _by_name("name of both", "to a public and a private host", "both.example.com", "ten", seen=_TEN),
    _by_name("rebinding", "to a public, then a private host", "rebind.example.com", "ten", times=4, seen=_TEN),
    _by_name("rebinding of a listed name", "that is listed to a public, then a private host",
             "a.allowed-rebind.example.com", "ten", port=443, times=4),
    _by_name("rebinding, Node", "to a private host, by Node", "private.example.com", "ten", server="node", seen=_TEN),
]  # fmt: skip
_BY = [
    _row("UDP", "sends datagrams to a public host", "udp", "public", needs="seccomp"),
    _row("UDP, Node", "the same, by Node", "udp", "public", needs="seccomp", server="node"),
    _row("UDP by IPv6", "the same, by IPv6", "udp", "public6", needs="seccomp"),
    _row("UDP to metadata", "sends datagrams to 169.254.169.254", "udp", "metadata", needs="seccomp"),
    _row("QUIC", "sends datagrams to port 443", "udp", "other", needs="seccomp", facts=_to("other", port=443)),
    _row("fast open", "connects by MSG_FASTOPEN and TCP_FASTOPEN_CONNECT", "fast_open", "metadata", needs="seccomp"),
    _row("reconnected", "connects to a public host, lets go by AF_UNSPEC, connects to 169.254.169.254", "reconnected",
         "metadata", facts=_to("public", "metadata"), seen=_METADATA),
    _row("DNS tunnel", "sends a secret in a name", "tunnel", profiles=STRICT, seen="name", refused=_unanswered_tunnel),
    _row("DNS tunnel back", "takes an answer in TXT records, by datagram and by stream", "tunnel_back",
         facts=_to("10.53.53.53", "other"), refused=both(keeps("credential"), _unanswered_tunnel)),
    _row("listen", "listens on all addresses, and on a port of the kernel's choice", "listen", facts={"port": 7_654},
         needs="landlock 4", seen="listen", refused=no_answer),
    _row("listen, Node", "the same, by Node's http", "listen", server="node", facts={"port": 7_655}, needs="landlock 4",
         refused=no_answer),
]  # fmt: skip

ROWS = [*_TO, *_BY]
