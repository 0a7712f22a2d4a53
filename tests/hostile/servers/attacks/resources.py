"""More than its share. Every bomb has an end of its own, so that a machine without walls lives."""

import contextlib
import ctypes
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable

from .attempt import Facts

_HOLD_S = 1.5


def processes(facts: Facts) -> str:
    """Forks until it may not, and holds them."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for _ in range(facts["most"]):
            child = os.fork()
            if child == 0:
                time.sleep(_HOLD_S + 2)
                os._exit(0)
            children.append(child)
    time.sleep(_HOLD_S)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return f"processes: {len(children)}"


def threads(facts: Facts) -> str:
    over = threading.Event()
    threading.stack_size(65_536)
    started = 0
    with contextlib.suppress(RuntimeError):
        for _ in range(facts["most"]):
            threading.Thread(target=over.wait, args=(_HOLD_S + 2,), daemon=True).start()
            started += 1
    time.sleep(_HOLD_S)
    over.set()
    return f"threads: {started}"


def memory(facts: Facts) -> str:
    """Pages that are touched, 32 MiB at a time."""
    held: list[bytearray] = []
    with contextlib.suppress(MemoryError):
        while len(held) * 32 < facts["most_mb"]:
            piece = bytearray(32 << 20)
            piece[::4096] = b"x" * len(piece[::4096])
            held.append(piece)
    time.sleep(0.3)
    return f"MiB: {len(held) * 32}"


def memory_files(facts: Facts) -> str:
    """memfd: memory that no limit of the process's data counts."""
    taken = 0
    with contextlib.suppress(OSError):
        while taken < facts["most_mb"]:
            descriptor = os.memfd_create(f"m{taken}")
            for _ in range(16):
                os.write(descriptor, b"x" * (4 << 20))
                taken += 4
    time.sleep(0.3)
    return f"MiB: {taken}"


def shared_mappings(facts: Facts) -> str:
    """Anonymous shared mappings, which are files of the kernel's."""
    import mmap

    held: list[mmap.mmap] = []
    with contextlib.suppress(OSError, ValueError):
        while len(held) * 32 < facts["most_mb"]:
            piece = mmap.mmap(-1, 32 << 20)
            for page in range(0, 32 << 20, 4096):
                piece[page] = 1
            held.append(piece)
    return f"MiB: {len(held) * 32}"


def by_children(facts: Facts) -> str:
    """Memory in many processes: a limit of each does not bound the sum."""
    reads, writes = os.pipe()
    children = []
    with contextlib.suppress(OSError):
        for _ in range(8):
            child = os.fork()
            if child == 0:
                got = memory({"most_mb": facts["most_mb"] // 8}).rpartition(" ")[2]
                os.write(writes, f"{got}\n".encode())
                time.sleep(_HOLD_S)
                os._exit(0)
            children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os.close(writes)
    with os.fdopen(reads) as lines:
        return f"MiB: {sum(int(line) for line in lines)}"


def own_cgroup(facts: Facts) -> str:
    """Lifts its own limits: writes to the files of its cgroup, leaves it, makes another below it."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        inside = next(line[3:].strip() for line in file if line.startswith("0::"))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounted = next(line.split()[4] for line in file if " - cgroup2 " in line)
    own, done = mounted.rstrip("/") + inside.rstrip("/"), []
    for path, text in (("memory.max", "max"), ("pids.max", "max"), ("cpu.max", "max"), ("../cgroup.procs", "0")):
        with contextlib.suppress(OSError), open(f"{own}/{path}", "w", encoding="ascii") as file:
            file.write(text)
            done.append(path)
    with contextlib.suppress(OSError):
        os.mkdir(f"{own}/another")
        os.rmdir(f"{own}/another")
        done.append("mkdir")
    if not done:
        raise PermissionError(f"{own} is closed")
    return f"changed: {', '.join(done)}"


def descriptors(facts: Facts) -> str:
    held: list[int] = []
    with contextlib.suppress(OSError):
        while len(held) < facts["most"]:
            held += os.pipe()
    return f"descriptors: {len(held)}"


def watches(facts: Facts) -> str:
    """Watches of files of its own, by several inotify instances."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.path.join(os.environ.get("TMPDIR") or os.getcwd(), "watched")
    os.mkdir(folder)
    instances = [libc.inotify_init1(0) for _ in range(4)]
    added = 0
    try:
        for number in range(facts["most"]):
            path = os.path.join(folder, str(number))
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            if libc.inotify_add_watch(instances[number % 4], path.encode(), 2) < 0:
                break
            added += 1
    finally:
        for instance in instances:
            os.close(instance)
        shutil.rmtree(folder)
    return f"watches: {added}"


def disk(facts: Facts) -> str:
    """One file in its own folder, as large as it gets."""
    written = 0
    with contextlib.suppress(OSError), tempfile.TemporaryFile(buffering=0) as file:
        while written < facts["most_mb"]:
            written += file.write(b"x" * (1 << 20)) >> 20
    return f"MiB: {written}"


def many_files(facts: Facts) -> str:
    """Files of 1 MiB each: a limit of one file does not bound the sum."""
    made = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
        while made < facts["most_mb"]:
            with open(os.path.join(folder, str(made)), "wb", 0) as file:
                if file.write(b"x" * (1 << 20)) < 1 << 20:
                    break
            made += 1
    return f"MiB: {made}"


def processor(facts: Facts) -> str:
    """Busy loops on every processor."""
    children = []
    until = time.monotonic() + facts["seconds"]
    for _ in range((os.cpu_count() or 1) * 2):
        child = os.fork()
        if child == 0:
            while time.monotonic() < until:
                pass
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return "spun"


def error_output(facts: Facts) -> str:
    """Lines on its standard error, which the gateway keeps for its log."""
    line = ("x" * 150 + "\n").encode() * 400
    for _ in range(facts["lines"] // 400):
        os.write(2, line)
    return "written"


def standard_output(facts: Facts) -> str:
    """Log messages that nobody asked for."""
    line = (
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"' + b"x" * 100 + b'"}}\n'
    )
    for _ in range(facts["lines"] // 100):
        os.write(1, line * 100)
    return "written"


def endless_line(facts: Facts) -> str:
    """One line that does not end."""
    for _ in range(facts["most_mb"]):
        os.write(1, b"x" * (1 << 20))
    return "written"


def refusals(facts: Facts) -> str:
    """Ten thousand connections that are refused, and as many files: what does it cost those who watch?"""
    tried = 0
    until = time.monotonic() + facts["seconds"]
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            connection.connect(("169.254.169.254", 1 + tried % 60_000))
        with contextlib.suppress(OSError), open(f"/etc/shadow{tried % 97}", "rb"):
            pass
        tried += 1
    return f"tried {tried} times"


def hanging_connections(facts: Facts) -> str:
    """Connections that never come about, by blocking sockets in many threads: who makes them for it, waits."""

    def one(number: int) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.connect((facts["hosts"][0], facts["port"] + number))

    _in_background(facts["most"], one)
    return "waits"


def many_names(facts: Facts) -> str:
    """Names that take long to resolve, in many threads."""

    def one(number: int) -> None:
        with contextlib.suppress(OSError):
            socket.getaddrinfo(f"n{number}.tunnel.example.com", 80)

    _in_background(facts["most"], one)
    return "asked"


def _in_background(count: int, run: Callable[[int], None]) -> None:
    """In as many threads as can be had, which nobody waits for to the end."""
    for number in range(count):
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=run, args=(number,), daemon=True).start()
    time.sleep(_HOLD_S)


def half_queries(facts: Facts) -> str:
    """Connections to the name server that say nothing, or announce 64 KiB and send none."""
    held = []
    with contextlib.suppress(OSError):
        for number in range(facts["most"]):
            connection = socket.create_connection((facts["hosts"][0], 53), 1.0)
            if number % 2:
                connection.sendall(b"\xff\xff\x00")
            held.append(connection)
    time.sleep(_HOLD_S)
    return f"connections: {len(held)}"


def locked_memory(facts: Facts) -> str:
    """mlock: memory that cannot leave."""
    size = facts["most_mb"] << 20
    piece = bytearray(size)
    address = (ctypes.c_char * size).from_buffer(piece)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(address, ctypes.c_size_t(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return f"MiB: {facts['most_mb']}"


def recursion(facts: Facts) -> str:
    """A tree of folders deeper than a path can be, which somebody has to remove."""
    base = os.environ.get("TMPDIR") or os.getcwd()
    os.chdir(base)
    for _ in range(facts["most"]):
        os.mkdir("d" * 100)
        os.chdir("d" * 100)
    os.chmod(".", 0)
    return f"depth: {facts['most']}"
