"""Connections: to where, and by which way."""

from typing import Any

from tests.hostile.outside import ADDRESSES
from tests.hostile.rows.row import STRICT, Facts, Outcome, Row, both, keeps, no_answer, not_heard, unreached
from tests.hostile.stage import Called, Stage

__all__ = ["ROWS"]

_PRIVATE = ("ten", "seventeen", "nineteen", "carrier", "unique")


def _to(*hosts: str, port: int = 80, **more: Any) -> Any:
    addresses = [ADDRESSES.get(host, host) for host in hosts]
    return lambda stage: {"hosts": addresses, "port": port, **more}


def _name(name: str, port: int = 80, times: int = 1) -> Any:
    return lambda stage: {"name": name, "port": port, "times": times}


def _row(name: str, what: str, attack: str, *hosts: str, seen: str = "", **more: Any) -> Row:
    """To hosts outside, where not one packet may come."""
    given: dict[str, Any] = {"needs": "user_notif", "facts": _to(*hosts), "refused": unreached(*hosts), **more}
    return Row(name=name, what=what, attack=f"network.{attack}", seen=seen, **given)


def _listens(stage: Stage, called: Called, facts: Facts) -> Outcome:
    return no_answer(stage, called, facts)


def _unanswered_tunnel(stage: Stage, called: Called, facts: Facts) -> Outcome:
    asked = [name for name in stage.outside.names if facts["token"] in name]
    return Outcome(not asked, f"the zone was asked for {asked[0]}" if asked else called.text[:100])


def _quiet_gateway(stage: Stage, called: Called, facts: Facts) -> Outcome:
    reached = called.got.startswith("HTTP/")
    return Outcome(not reached, "the gateway answered" if reached else called.text[:100])


_TO = [
    _row("metadata", "connects to 169.254.169.254", "tcp", "metadata", seen="connect 169.254.169.254:80"),
    _row(
        "metadata, Node", "the same, by Node's net", "tcp", "metadata", server="node", seen="connect 169.254.169.254:80"
    ),
    _row(
        "metadata, fetch",
        "the same, by Node's fetch",
        "fetch",
        "metadata",
        server="node",
        seen="connect 169.254.169.254:80",
    ),
    _row(
        "metadata, shell's child",
        "the same, by an interpreter that a shell starts",
        "tcp",
        "metadata",
        way="shell",
        seen="connect 169.254.169.254:80",
    ),
    _row(
        "metadata, orphan",
        "the same, by a process that has lost everybody above it",
        "through_child",
        "metadata",
        seen="connect 169.254.169.254:80",
    ),
    _row("metadata by IPv6", "connects to fd00:ec2::254", "tcp", "metadata6", seen="connect [fd00:ec2::254]:80"),
    _row(
        "mapped",
        "connects to ::ffff:169.254.169.254",
        "tcp",
        "metadata",
        facts=_to("::ffff:169.254.169.254"),
        seen="connect 169.254.169.254:80",
    ),
    _row(
        "NAT64",
        "connects to 64:ff9b::a9fe:a9fe, which a translator leads to 169.254.169.254",
        "tcp",
        "nat64",
        seen="connect",
    ),
    _row(
        "6to4",
        "connects to 2002:a9fe:a9fe::1, which a relay leads to 169.254.169.254",
        "tcp",
        "sixtofour",
        seen="connect",
    ),
    Row(
        name="private ranges",
        what="connects to 10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7",
        attack="network.tcp",
        facts=_to(*_PRIVATE),
        refused=unreached(*_PRIVATE),
        needs="user_notif",
        seen="connect 10.20.30.40:80",
    ),
    Row(
        name="loopback",
        what="connects to a service on 127.0.0.1 and ::1",
        attack="network.tcp",
        facts=_to("127.0.0.1", "::1", port=8123),
        refused=not_heard("loopback"),
        needs="user_notif",
        seen="connect 127.0.0.1:8123",
    ),
    Row(
        name="loopback's other names",
        what="connects to 127.9.9.9, 0.0.0.0, ::, ::ffff:127.0.0.1",
        attack="network.tcp",
        facts=_to("127.9.9.9", "0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", port=8123),
        refused=not_heard("loopback"),
        needs="user_notif",
        seen="connect",
    ),
    Row(
        name="decimal",
        what="connects to 2130706433, 0x7f.1 and 0177.0.0.1",
        attack="network.by_name",
        facts=_name("2130706433", 8123),
        refused=not_heard("loopback"),
        needs="user_notif",
        seen="connect 127.0.0.1:8123",
    ),
    Row(
        name="localhost",
        what="connects to localhost by its name",
        attack="network.by_name",
        facts=_name("localhost", 8123),
        refused=not_heard("loopback"),
        needs="user_notif",
        seen="connect",
    ),
    Row(
        name="own address",
        what="connects to the machine's own address",
        attack="network.tcp",
        facts=_to("10.99.0.2", "fd99::2", port=8123),
        refused=not_heard("loopback"),
        needs="user_notif",
        seen="connect 10.99.0.2:8123",
    ),
    Row(
        name="gateway's listener",
        what="connects to the gateway's own port",
        attack="network.tcp",
        facts=lambda stage: {"hosts": ["127.0.0.1"], "port": stage.port},
        refused=_quiet_gateway,
        needs="user_notif",
        seen="connect",
    ),
    _row(
        "public host",
        "connects to a host that is not listed",
        "tcp",
        "public",
        profiles=STRICT,
        works=("standard",),
        seen="connect 93.184.215.14:80",
    ),
    _row("public host by IPv6", "the same, by IPv6", "tcp", "public6", profiles=STRICT, seen="connect"),
    Row(
        name="public name",
        what="connects to a host that is not listed, by its name",
        attack="network.by_name",
        facts=_name("public.example.com"),
        refused=unreached("public"),
        needs="user_notif",
        profiles=STRICT,
        works=("standard",),
        seen="name public.example.com",
    ),
    Row(
        name="other port",
        what="connects to another port of the host that is listed",
        attack="network.by_name",
        facts=_name("allowed.example.com", 22),
        refused=unreached("allowed", port=22),
        needs="user_notif",
        profiles=STRICT,
        seen="connect 93.184.215.99:22",
    ),
    Row(
        name="name of a private host",
        what="connects by a public name that means 10.20.30.40",
        attack="network.by_name",
        facts=_name("private.example.com"),
        refused=unreached("ten"),
        needs="user_notif",
        seen="connect 10.20.30.40:80",
    ),
    Row(
        name="name of the metadata host",
        what="connects by a public name that means 169.254.169.254",
        attack="network.by_name",
        facts=_name("metadata.example.com"),
        refused=unreached("metadata"),
        needs="user_notif",
        seen="connect 169.254.169.254:80",
    ),
    Row(
        name="name of both",
        what="connects by a name that means a public and a private host",
        attack="network.by_name",
        facts=_name("both.example.com"),
        refused=unreached("ten"),
        needs="user_notif",
        seen="connect 10.20.30.40:80",
    ),
    Row(
        name="rebinding",
        what="connects by a name that changes from a public to a private host",
        attack="network.by_name",
        facts=_name("rebind.example.com", times=4),
        refused=unreached("ten"),
        needs="user_notif",
        seen="connect 10.20.30.40:80",
    ),
    Row(
        name="rebinding of a listed name",
        what="the same, by a name that is listed",
        attack="network.by_name",
        facts=_name("a.allowed-rebind.example.com", port=443, times=4),
        refused=unreached("ten"),
        needs="user_notif",
    ),
    Row(
        name="rebinding, Node",
        what="connects by a name that means a private host, by Node",
        server="node",
        attack="network.by_name",
        facts=_name("private.example.com"),
        refused=unreached("ten"),
        needs="user_notif",
        seen="connect 10.20.30.40:80",
    ),
]
_BY = [
    _row("UDP", "sends datagrams to a public host", "udp", "public", needs="seccomp"),
    _row("UDP, Node", "the same, by Node", "udp", "public", needs="seccomp", server="node"),
    _row("UDP by IPv6", "the same, by IPv6", "udp", "public6", needs="seccomp"),
    _row("UDP to metadata", "sends datagrams to 169.254.169.254", "udp", "metadata", needs="seccomp"),
    _row("QUIC", "sends datagrams to port 443", "udp", "other", needs="seccomp", facts=_to("other", port=443)),
    _row("sendmmsg", "sends a datagram by sendmmsg", "udp_by_sendmmsg", "public", needs="seccomp"),
    _row("other kinds", "connects by MPTCP, SCTP, DCCP, UDP-Lite", "other_kinds", "metadata", needs="seccomp"),
    _row(
        "raw sockets",
        "sends ICMP, opens packet sockets",
        "raw",
        "public",
        needs="seccomp",
        refused=both(no_answer, unreached("public")),
        root="it needs a capability",
    ),
    Row(
        name="other families",
        what="opens vsock, AF_ALG, AF_XDP, TIPC, CAN, KCM, PF_KEY and audit sockets",
        attack="network.families",
        refused=no_answer,
        needs="seccomp",
    ),
    _row("fast open", "connects by MSG_FASTOPEN and TCP_FASTOPEN_CONNECT", "fast_open", "metadata", needs="seccomp"),
    _row("io_uring", "connects by io_uring", "ring", "metadata", needs="seccomp"),
    _row(
        "changed address",
        "changes the address while its connection is decided",
        "changed_address",
        "metadata",
        "ten",
        facts=_to("public", "metadata"),
        refused=unreached("metadata"),
        seen="connect 169.254.169.254:80",
    ),
    _row(
        "changed socket",
        "changes the descriptor while its connection is decided",
        "changed_socket",
        "metadata",
        seen="connect 169.254.169.254:80",
    ),
    _row(
        "reconnected",
        "connects to a public host, lets go by AF_UNSPEC, connects to 169.254.169.254",
        "reconnected",
        "metadata",
        facts=_to("public", "metadata"),
        seen="connect 169.254.169.254:80",
    ),
    _row(
        "odd lengths",
        "connects with lengths and families that do not fit each other",
        "half_length",
        "metadata",
        seen="connect 169.254.169.254:80",
    ),
    _row("other tables", "connects by int 0x80 and x32", "other_table", "metadata", needs="seccomp"),
    _row(
        "own listener",
        "installs a filter whose listener says `continue`",
        "own_filter",
        "metadata",
    ),
    Row(
        name="DNS tunnel",
        what="sends a secret in a name",
        attack="network.tunnel",
        refused=_unanswered_tunnel,
        needs="user_notif",
        profiles=STRICT,
        seen="name",
    ),
    Row(
        name="DNS tunnel back",
        what="takes an answer in TXT records, by datagram and by stream",
        attack="network.tunnel_back",
        facts=_to("10.53.53.53", "other"),
        refused=both(keeps("credential"), _unanswered_tunnel),
        needs="user_notif",
        seen="",
    ),
    Row(
        name="listen",
        what="listens on all addresses, and on a port of the kernel's choice",
        attack="network.listen",
        facts=lambda stage: {"port": 7_654},
        refused=_listens,
        needs="landlock 4",
        seen="listen",
    ),
    Row(
        name="listen, Node",
        what="the same, by Node's http",
        server="node",
        attack="network.listen",
        facts=lambda stage: {"port": 7_655},
        refused=_listens,
        needs="landlock 4",
        seen="listen",
    ),
    Row(
        name="gateway's port",
        what="listens on the gateway's own port beside it (SO_REUSEPORT)",
        attack="network.same_port",
        facts=lambda stage: {"port": stage.port},
        refused=no_answer,
        needs="landlock 4",
        already="the gateway's socket is not shared",
    ),
]

ROWS = [*_TO, *_BY]
