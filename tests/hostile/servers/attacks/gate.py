"""Against what decides in the server's stead on connections and attributes: races, arithmetic, endurance."""

import contextlib
import ctypes
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial

from .attempt import Facts, any_of, flipping, honest_call, in_threads, own_path, which_of
from .kernel import libc, syscall, text
from .network import address_of, talk

_HIGH = 1 << 32
"""The kernel reads 32 bits of an argument that is an int. A filter that reads 64 sees another number."""


def unix_by_link(facts: Facts) -> str:
    """A link in its own folder, a path from the current folder, /proc/self/root, a path without an end."""
    link = own_path("sock")
    os.symlink(facts["path"], link)
    paths = (link, f"/proc/self/root{facts['path']}", "//" + facts["path"].lstrip("/"))
    found = [_unix(path.encode(), facts) for path in paths]
    with contextlib.suppress(OSError):
        os.chdir(os.path.dirname(facts["path"]))
        found.append(_unix(os.path.basename(facts["path"]).encode(), facts))
    found.append(_unix(b"/" * (108 - len(facts["path"])) + facts["path"].encode(), facts))
    return any_of([*filter(None, found)], "no way of five", "\n")


def _unix(path: bytes, facts: Facts) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        address = ctypes.create_string_buffer(struct.pack("=H", socket.AF_UNIX) + path, 110)
        if libc.connect(connection.fileno(), address, 2 + min(108, len(path) + 1)) == 0:
            connection.sendall(facts["token"].encode())
            return text(connection.recv(1000))
    return ""


def unix_race(facts: Facts) -> str:
    """The folder of a socket of its own becomes a link to the folder of another while it is decided."""
    own, link = own_path("real"), own_path("flips")
    os.mkdir(own)
    with socket.socket(socket.AF_UNIX) as listener:
        name = os.path.basename(facts["path"])
        listener.bind(os.path.join(own, name))
        listener.listen(1_000)

        def flip() -> None:
            for target in (own, os.path.dirname(facts["path"])):
                os.symlink(target, link + ".new")
                os.rename(link + ".new", link)

        got = ""
        with flipping(flip):
            until = time.monotonic() + 1.5
            while time.monotonic() < until and "canary" not in got:
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(0.02)
                    connection.connect(os.path.join(link, name))
                    connection.sendall(facts["token"].encode())
                    got = text(connection.recv(100))
    return got or "raced"


def attribute_race(facts: Facts) -> str:
    """A file of its own becomes a link to another's while its mode is changed."""
    path = own_path("mode")
    own = own_path("mine")
    with open(own, "w", encoding="ascii"):
        pass

    def flip() -> None:
        for target in (own, facts["path"]):
            os.symlink(target, path + ".new")
            os.rename(path + ".new", path)

    tried = 0
    with flipping(flip):
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                os.chmod(path, 0o666)
            with contextlib.suppress(OSError):
                os.utime(path, (1, 1))
            tried += 1
    return f"tried {tried} times"


def attributes_by_descriptor(facts: Facts) -> str:
    """Of a program that it may read: fchmod, futimens, fsetxattr, and the same through /proc/self/fd."""
    descriptor = os.open(facts["path"], os.O_RDONLY)
    held = os.open(facts["path"], os.O_PATH)
    acts: dict[str, Callable[[], object]] = {
        "fchmod": lambda: os.fchmod(descriptor, 0o666),
        "futimens": lambda: os.utime(descriptor, (1, 1)),
        "fsetxattr": lambda: os.setxattr(descriptor, "user.owned", b"1"),
        "fchown": lambda: os.fchown(descriptor, os.getuid(), os.getgid()),
        "chmod by /proc": lambda: os.chmod(f"/proc/self/fd/{held}", 0o666),
        "utime by /proc": lambda: os.utime(f"/proc/self/fd/{held}", (1, 1)),
    }
    return which_of(acts.items(), "none of six")


def high_halves_typing(facts: Facts) -> str:
    """TIOCSTI with a bit above the 32 that the kernel reads."""
    import pty

    child, _ = pty.fork()
    if child == 0:
        letter = ctypes.create_string_buffer(b"x")
        libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        os._exit(8 if libc.ioctl(0, 0x5412 | _HIGH, letter) else 7)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        raise PermissionError("refused")
    return "typed"


def high_halves_sockets(facts: Facts) -> str:
    """A datagram socket and a fast open whose numbers have a bit above."""
    done = []
    host, port = facts["hosts"][0], facts["port"]
    address = ctypes.create_string_buffer(address_of(host, port), 16)
    data = facts["token"].encode()
    for kind, protocol in ((2 | _HIGH, 0), (2, _HIGH), (1 | _HIGH, 0)):
        for family in (2, 2 | _HIGH):
            with contextlib.suppress(OSError):
                number = syscall("socket", family, kind, protocol)
                flags = 0 if kind & 0xF == 2 else 0x2000_0000 | _HIGH
                with contextlib.suppress(OSError):
                    syscall("sendto", number, data, len(data), flags, address, 16)
                    done.append(f"{family:#x} {kind:#x}")
                os.close(number)
    return any_of(done, "none of six")


def high_halves_processes(facts: Facts) -> str:
    """prlimit and kill of a sibling, its number with a bit above."""
    limits = ctypes.create_string_buffer(struct.pack("QQ", 3, 3))
    acts = {
        "prlimit": lambda pid: syscall("prlimit64", pid | _HIGH, resource.RLIMIT_NOFILE, limits, 0),
        "scheduler": lambda pid: syscall("sched_setscheduler", pid | _HIGH, 5, ctypes.create_string_buffer(4)),
    }
    return which_of(((name, partial(act, pid)) for pid in facts["siblings"] for name, act in acts.items()), "none")


def priority_of_user(facts: Facts) -> str:
    """setpriority for all processes of the user, the gateway's among them."""
    os.setpriority(os.PRIO_USER, 0, 15)
    return "set"


def odd_calls(facts: Facts) -> str:
    """Calls that make no sense, and processes that end in the middle of one. Afterwards an honest call works."""
    chance = random.Random(1)
    places = [0, 1, 8, 0xDEAD_0000, 1 << 46, (1 << 63) - 1, ctypes.addressof(ctypes.create_string_buffer(4096)) + 4090]
    for _ in range(facts.get("times", 300)):
        for name in ("connect", "fchmodat", "utimensat", "sendto"):
            with contextlib.suppress(OSError):
                numbers = [chance.choice([-1, 0, 1, 2, 3, 99, 1 << 20, -100, *places]) for _ in range(3)]
                syscall(name, *numbers, 0)
    for _ in range(20):
        if os.fork() == 0:
            threading.Thread(target=_connects, args=(facts,), daemon=True).start()
            time.sleep(chance.random() / 500)
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
    return honest_call()


def _connects(facts: Facts) -> None:
    while True:
        with contextlib.suppress(OSError), socket.socket() as connection:
            connection.setblocking(False)
            connection.connect((facts["hosts"][0], facts["port"]))


def odd_queries(facts: Facts) -> str:
    """Names that refer to themselves, questions without end, lengths that are not true, for who answers them."""
    head = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    chance = random.Random(2)
    queries = [
        b"",
        b"\x00",
        head,
        head + b"\xc0\x0c\x00\x01\x00\x01",
        head + b"\xc0\xff" * 3000,
        head + b"\x3f" * 5000,
        head[:4] + b"\xff\xff" * 4 + b"\x01a\x00\x00\x01\x00\x01" * 4000,
        head + b"\x04\x00\xff\n\r\x00\x00\x01\x00\x01",
        head + (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61 + b"\x00\x00\x01\x00\x01",
        b"\x12\x34\xff\xff" + head[4:] + b"\x01a\x00\x00\xff\x00\xff",
        *(chance.randbytes(chance.randrange(1, 600)) for _ in range(60)),
    ]
    sent = 0
    for query in queries:
        with contextlib.suppress(OSError), socket.create_connection((facts["hosts"][0], 53), 1.0) as stream:
            stream.settimeout(0.2)
            stream.sendall(struct.pack(">H", len(query)) + query)
            stream.shutdown(socket.SHUT_WR)
            sent += 1
            while stream.recv(4096):
                pass
    return f"sent {sent}"


def inherited(facts: Facts) -> str:
    """What it was left: descriptors beside its three."""
    found = []
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            found.append(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
    return "\n".join(found)


def forks_at_once(facts: Facts) -> str:
    """Threads that all fork at the same moment, and children whose parents are gone."""
    barrier = threading.Barrier(16)
    started: list[int] = []

    def one() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(5)
        for _ in range(facts["most"] // 16):
            with contextlib.suppress(OSError):
                child = os.fork()
                if child == 0:
                    if os.fork() == 0:
                        time.sleep(2.5)
                    os._exit(0)
                started.append(child)

    in_threads(16, one)
    time.sleep(1)  # who is ended for it does not get to the answer
    return f"forks: {len(started)}"


def honest(facts: Facts) -> str:
    """What every server may do: its own folder, a few processes and threads, its state, memory."""
    path = own_path("work")
    os.mkdir(path)
    with open(os.path.join(path, "file"), "w+", encoding="ascii") as file:
        file.write("work")
    os.rename(os.path.join(path, "file"), os.path.join(path, "renamed"))
    os.chmod(os.path.join(path, "renamed"), 0o600)
    os.utime(os.path.join(path, "renamed"), (1, 1))
    children = [os.fork() for _ in range(4)]
    if 0 in children:
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    thread = threading.Thread(target=bytearray, args=(32 << 20,))
    thread.start()
    thread.join()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["MCP_SESSION_SOCKET"])
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
    return "worked"


def honest_forks(facts: Facts) -> str:
    """Starts processes while others end, with a handler as shells have it: fork(2) knows no EINTR."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.siginterrupt(signal.SIGCHLD, True)
    failed = 0
    for _ in range(300):
        try:
            if os.fork() == 0:
                os._exit(0)
        except InterruptedError:
            failed += 1
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    if failed:
        raise InterruptedError(f"{failed} of 300 forks were interrupted")
    return "worked"


def honest_name(facts: Facts) -> str:
    """A connection to a host that it may reach, by its name."""
    with socket.create_connection((facts["name"], facts["port"]), 5) as connection:
        return talk(connection, facts)
