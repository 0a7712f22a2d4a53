"""The network outside: hosts on public, private and metadata addresses, and a name server. It sees every packet.

It lives in threads with a network of their own, which one pair of virtual cables joins to the world's. `seen` is the
measure of what a server reached: not what the server says of it.
"""

import contextlib
import ipaddress
import os
import selectors
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from tests.hostile.namespaces import unshare_network

CREDENTIAL: Final = "canary-metadata-credential-5d41402abc4b"
"""What every host outside answers."""
NAME_SERVER: Final = "10.53.53.53"
ADDRESSES: Final = {
    "metadata": "169.254.169.254",
    "metadata6": "fd00:ec2::254",
    "ten": "10.20.30.40",
    "seventeen": "172.16.5.5",
    "nineteen": "192.168.77.7",
    "carrier": "100.64.1.1",
    "unique": "fd12:3456::1",
    "nat64": "64:ff9b::a9fe:a9fe",
    "sixtofour": "2002:a9fe:a9fe::1",
    "nat64local": "64:ff9b:1::a9fe:a9fe",
    "siit": "::ffff:0:a9fe:a9fe",
    "neighbour": "fe80::77",
    "public": "93.184.215.14",
    "public6": "2606:2800:21f:cb07::1",
    "other": "9.9.9.9",
    "allowed": "93.184.215.99",
}
_TCP_PORTS: Final = (22, 80, 443, 853, 5432, 8443)
NAMES: Final = {
    "public.example.com": ["public"],
    "allowed.example.com": ["allowed"],
    "private.example.com": ["ten"],
    "metadata.example.com": ["metadata"],
    "both.example.com": ["public", "ten"],
}
"""Name → hosts. `rebind.example.com` is `public` and `ten` in turn; `*.allowed-rebind.example.com` as well."""
_WORLD: Final = ("10.99.0.2/24", "fd99::2/64")
_HERE: Final = ("10.99.0.1", "fd99::1")


@dataclass(frozen=True, slots=True)
class Packet:
    """One that came out of the world: protocol (`tcp`, `udp`, `icmp`, a number), where to, what it carried."""

    protocol: str
    to: str
    port: int
    data: bytes


@dataclass
class Outside:
    """The threads. `seen` holds the packets since `forget`."""

    seen: list[Packet] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _turns: int = 0
    _failed: str = ""

    def start(self) -> None:
        """Make both networks and serve."""
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait(10)
        if self._failed:
            raise RuntimeError(self._failed)
        for command in (
            "link set lo up",
            f"addr add {_WORLD[0]} dev world",
            f"-6 addr add {_WORLD[1]} dev world nodad",
            "link set world up",
            f"route add default via {_HERE[0]}",
            f"-6 route add default via {_HERE[1]}",
        ):
            _ip(command)

    def forget(self) -> None:
        self.seen.clear()
        self.names.clear()

    def reached(self, host: str, port: int | None = None) -> list[Packet]:
        """The packets that came for that host, after those under way have arrived."""
        time.sleep(0.05)
        address = str(ipaddress.ip_address(ADDRESSES.get(host, host)))
        return [each for each in tuple(self.seen) if each.to == address and port in (None, each.port)]

    def _run(self, ready: threading.Event) -> None:
        try:
            unshare_network()
            _ip(f"link add outside type veth peer name world netns {os.getpid()}")
            for command in ("link set lo up", f"addr add {_HERE[0]}/24 dev outside", "link set outside up"):
                _ip(command)
            _ip(f"-6 addr add {_HERE[1]}/64 dev outside nodad")
            _ip(f"-6 addr add {ADDRESSES['neighbour']}/64 dev outside nodad")
            for address in (*ADDRESSES.values(), NAME_SERVER):
                if address == ADDRESSES["neighbour"]:
                    continue
                bits = "/32" if ":" not in address else "/128 nodad"
                _ip(f"addr add {address.split('/')[0]}{bits.split()[0]} dev lo {' '.join(bits.split()[1:])}".strip())
            # MSG_FASTOPEN must be able to bring data with the first packet.
            with open("/proc/sys/net/ipv4/tcp_fastopen", "w", encoding="ascii") as file:
                file.write("1027")
            sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            sniffer.bind(("outside", 0))
            self._serve(sniffer, ready)
        except Exception as error:
            self._failed = f"the network outside cannot be made: {error}"
            ready.set()

    def _serve(self, sniffer: socket.socket, ready: threading.Event) -> None:
        selector = selectors.DefaultSelector()
        selector.register(sniffer, selectors.EVENT_READ, "packet")
        for port in _TCP_PORTS:
            listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
            selector.register(listener, selectors.EVENT_READ, "accept")
        dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        dns.bind((NAME_SERVER, 53))
        selector.register(dns, selectors.EVENT_READ, "name")
        ready.set()
        while True:
            for key, _ in selector.select():
                found = key.fileobj
                assert isinstance(found, socket.socket)
                with contextlib.suppress(OSError):
                    self._event(found, key.data, selector)

    def _event(self, found: socket.socket, kind: str, selector: selectors.DefaultSelector) -> None:
        match kind:
            case "packet":
                data, (_, _, direction, *_) = found.recvfrom(65_536)
                if direction != 4 and (packet := _packet(data)) is not None:  # not what goes out
                    self.seen.append(packet)
            case "accept":
                connection, _ = found.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, "request")
            case "request":
                selector.unregister(found)
                with found:
                    found.recv(4096)
                    body = f'{{"Token": "{CREDENTIAL}"}}'
                    found.sendall(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            case _:
                query, peer = found.recvfrom(4096)
                found.sendto(self._answer(query), peer)

    def _answer(self, query: bytes) -> bytes:
        """A, AAAA and TXT. Written by hand, so that both ends do not share a bug."""
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
            at += 1 + query[at]
        question, kind = query[12 : at + 5], struct.unpack(">H", query[at + 1 : at + 3])[0]
        name = ".".join(labels).lower()
        self.names.append(name)
        records = self._records(name, kind)
        flags = 0x8400 if records is not None else 0x8403
        head = query[:2] + struct.pack(">HHHHH", flags, 1, len(records or ()), 0, 0)
        answers = (b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 1, len(data)) + data for data in records or ())
        return head + question + b"".join(answers)

    def _records(self, name: str, kind: int) -> list[bytes] | None:
        if name.endswith("rebind.example.com"):
            if kind == 1:
                self._turns += 1
            hosts = [("public", "ten")[self._turns % 2]] if kind == 1 else []
        elif name.endswith(".tunnel.example.com"):
            if kind == 16:
                return [bytes([len(CREDENTIAL)]) + CREDENTIAL.encode()]
            hosts = ["public"]
        elif name in NAMES:
            hosts = NAMES[name]
        else:
            return None
        found = [ipaddress.ip_address(ADDRESSES[host]) for host in hosts]
        return [address.packed for address in found if kind == {4: 1, 6: 28}[address.version]]


def _ip(command: str) -> None:
    ran = subprocess.run(["ip", *command.split()], capture_output=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"ip {command}: {ran.stderr.decode(errors='replace').strip()}")


def _packet(frame: bytes) -> Packet | None:
    kind, body = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and len(body) >= 20:
        protocol, to, rest = body[9], body[16:20], body[(body[0] & 15) * 4 :]
    elif kind == b"\x86\xdd" and len(body) >= 40:
        protocol, to, rest = body[6], body[24:40], body[40:]
    else:
        return None
    name = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp", 136: "udplite"}.get(protocol, str(protocol))
    if protocol == 58 and rest[:1] in (b"\x85", b"\x86", b"\x87", b"\x88", b"\x8f"):  # neighbours finding each other
        return None
    port = struct.unpack(">H", rest[2:4])[0] if name in ("tcp", "udp", "udplite") and len(rest) >= 4 else 0
    return Packet(name, str(ipaddress.ip_address(to)), port, rest)
