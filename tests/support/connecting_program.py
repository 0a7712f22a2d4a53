"""A program behind a gate: connects and listens as its argument says, and prints how each attempt went.

The argument is JSON, a list of attempts: `["connect", domain, address in hex, {"type", "nonblocking", "bytes"}]` with
the name of an errno (or "") as its result, `["bytes", "http address"]` and others, one function for each below.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)


def named(number: int) -> str:
    return errno.errorcode[number] if number else ""


def raw_connect(fd: int, address: bytes | None, size: int | None = None) -> str:
    length = len(address or b"") if size is None else size
    return "" if libc.connect(fd, address, length) == 0 else named(ctypes.get_errno())


def connect(domain: int, address: str, options: dict[str, Any]) -> str:
    """Connect a new socket. If that takes its time, wait for it as programs do."""
    try:
        opened = socket.socket(domain, options.get("type", socket.SOCK_STREAM))
    except OSError as error:
        return f"socket: {named(error.errno or 0)}"
    with opened as fresh:
        nonblocking = bool(options.get("nonblocking"))
        fresh.setblocking(not nonblocking)
        result = raw_connect(fresh.fileno(), bytes.fromhex(address), options.get("size"))
        if result == "EINPROGRESS":
            select.select([], [fresh], [], 10)
            result = named(fresh.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        assert bool(fcntl.fcntl(fresh.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK) == nonblocking
        if not result and options.get("bytes"):
            fresh.setblocking(True)
            fresh.sendall(b"x")
            return fresh.recv(100).decode()
        return result


def odd_descriptors() -> list[str]:
    """Descriptors that are none, or no sockets, and an address that cannot be read."""
    address = bytes.fromhex("02000050080808080000000000000000")
    with socket.socket() as fresh, open("/dev/null", "rb") as null:
        results = [raw_connect(fd, address) for fd in (-1, 9_999, null.fileno())]
        libc.connect(fresh.fileno(), ctypes.c_void_p(8), 16)
        results.append(named(ctypes.get_errno()))
        libc.connect(fresh.fileno(), ctypes.c_void_p(2**63 + 8), 16)
        results.append(named(ctypes.get_errno()))
        return results


def disconnect(port: int) -> list[str]:
    """Connect, disconnect with AF_UNSPEC, and connect the same socket to somewhere else."""
    with socket.socket() as fresh:
        fresh.connect(("127.0.0.1", port))
        unspecified = raw_connect(fresh.fileno(), bytes(16))
        elsewhere = raw_connect(fresh.fileno(), bytes.fromhex("020000507f0000020000000000000000"))
        return [
            unspecified,
            elsewhere,
            raw_connect(fresh.fileno(), b"\x02\x00" + port.to_bytes(2, "big") + b"\x7f\x00\x00\x01" + bytes(8)),
        ]


def listen(domain: int, address: str, port: int) -> str:
    with socket.socket(domain) as fresh:
        try:
            if address:
                fresh.bind((address, port))
            fresh.listen()
        except OSError as error:
            return named(error.errno or 0)
        return ""


def own_listener() -> list[str]:
    """Listen on loopback, and connect there: before, while and after."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        name = listener.getsockname()
        results = []
        with socket.socket() as early:
            results.append(named(early.connect_ex(name)))
        listener.listen()
        results.append(named(client.connect_ex(name)))
        server, _ = listener.accept()
        with server:
            server.sendall(b"own")
            results.append(client.recv(10).decode())
    with socket.socket() as late:
        results.append(named(late.connect_ex(name)))
    return results


def hang(address: str, others: list[Any]) -> list[Any]:
    """While a thread is held up by a connection that never ends, others are made."""
    started = threading.Event()

    def wait() -> None:
        with socket.socket() as fresh:
            sys.stderr.write("connecting\n")
            sys.stderr.flush()
            started.set()
            raw_connect(fresh.fileno(), bytes.fromhex(address))

    threading.Thread(target=wait, daemon=True).start()
    started.wait()
    time.sleep(0.2)  # it waits in its call, or will soon: either is what the others must not notice
    return [run(each) for each in others]


def timeout(address: str) -> list[Any]:
    """A blocking socket with SO_SNDTIMEO."""
    with socket.socket() as fresh:
        fresh.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, (0).to_bytes(8, "little") + (300_000).to_bytes(8, "little")
        )
        before = time.monotonic()
        result = raw_connect(fresh.fileno(), bytes.fromhex(address))
        return [result, 0.2 < time.monotonic() - before < 5]


def race(address: str, allowed: str, seconds: float) -> list[str]:
    """Threads change the address and the descriptor while another connects with them. Who was ever connected to?"""
    memory = ctypes.create_string_buffer(bytes.fromhex(allowed), 16)
    pair = [bytes.fromhex(allowed), bytes.fromhex(address)]
    over, peers, attempts = threading.Event(), set(), 0
    null = os.open("/dev/null", os.O_RDONLY)
    slot = socket.socket().detach()

    def change() -> None:
        while not over.is_set():
            for each in pair:
                ctypes.memmove(memory, each, 16)

    def replace() -> None:
        while not over.is_set():
            os.dup2(null, slot)
            with socket.socket() as fresh:
                os.dup2(fresh.fileno(), slot)

    for target in (change, replace):
        threading.Thread(target=target, daemon=True).start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or attempts < 50:  # a slow machine takes longer
        with socket.socket() as fresh:
            attempts += 1
            for fd in (fresh.fileno(), slot):
                libc.connect(fd, memory, 16)
            with contextlib.suppress(OSError):
                peers.add(fresh.getpeername()[0])
    over.set()
    return sorted(peers)


def many(address: str, count: int) -> int:
    """So many children wait for connections that never end. How many fail at once?"""
    children: list[int] = []
    for _ in range(count):
        if (pid := os.fork()) == 0:
            with socket.socket() as fresh:
                os._exit(1 if raw_connect(fresh.fileno(), bytes.fromhex(address)) == "EAGAIN" else 2)
        children.append(pid)
    settle(children)
    with socket.socket() as fresh:  # calls are answered in turn: with this one, those of all children have been decided
        fresh.setblocking(False)
        raw_connect(fresh.fileno(), bytes.fromhex(address))
    settle(children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 for pid in children)


def settle(children: list[int]) -> None:
    """Wait until each child has ended or waits for an answer to its call. However long that takes: a child that gave up
    after a while would make room for others on a slow machine."""
    signal.alarm(25)
    for pid in children:
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            with open(f"/proc/{pid}/wchan") as place:
                if "seccomp" in place.read():
                    break
            time.sleep(0.01)
    signal.alarm(0)


def flood(address: str, count: int) -> str:
    results = {connect(socket.AF_INET, address, {}) for _ in range(count)}
    return ",".join(sorted(results))


def undumpable(address: str) -> str:
    libc.prctl(4, 0, 0, 0, 0)
    try:
        return connect(socket.AF_INET, address, {})
    finally:
        libc.prctl(4, 1, 0, 0, 0)


def resolve(name: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, 1, type=socket.SOCK_STREAM)})
    except socket.gaierror as error:
        return [str(error.args[1])]


def ask_by_datagram(name: str, kind: int) -> list[Any]:
    """Ask a resolver as Go's own does, over UDP: the response code, whether the answer is cut, the last address."""
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\0" + kind.to_bytes(2, "big") + b"\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as fresh:
        fresh.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        fresh.connect(("10.255.255.53", 53))
        assert fcntl.fcntl(fresh.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK
        fresh.send(query)
        select.select([fresh], [], [], 10)
        reply = fresh.recv(4_096)
        assert reply[:2] == query[:2]
        size = 4 if kind == 1 else 16
        found = reply[-size:] if int.from_bytes(reply[6:8], "big") else b""
        address = socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, found) if found else ""
        return [reply[3] & 0xF, bool(reply[2] & 2), address]


def datagrams() -> list[str]:
    """What a socket for datagrams does otherwise."""
    results = []
    attempts: list[Callable[[socket.socket], object]] = [
        lambda s: s.sendto(b"x", ("93.184.216.34", 53)),
        lambda s: s.sendmsg([b"x"], [], 0, ("93.184.216.34", 53)),
        lambda s: s.connect(("93.184.216.34", 443)),
        lambda s: s.connect(("10.0.0.5", 443)),
        lambda s: s.bind(("127.0.0.1", 0)),
        lambda s: s.send(b"x"),
    ]
    for attempt in attempts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as fresh:
            try:
                attempt(fresh)
                results.append("")
            except OSError as error:
                results.append(named(error.errno or 0))
    return results


def run(attempt: list[Any]) -> Any:
    functions: list[Callable[..., Any]] = [
        connect, odd_descriptors, disconnect, listen, own_listener, hang, timeout, race, many, flood, undumpable,
        resolve, ask_by_datagram, datagrams,
    ]  # fmt: skip
    return {function.__name__: function for function in functions}[attempt[0]](*attempt[1:])


if __name__ == "__main__":
    sys.stdout.write(json.dumps([run(attempt) for attempt in json.loads(sys.argv[1])]))
