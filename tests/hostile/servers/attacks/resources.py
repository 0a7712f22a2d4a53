"""More than its share. Every bomb has an end of its own, so that a machine without walls lives."""

import contextlib
import os
import socket
import time

from .attempt import Facts, in_threads

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


def standard_output(facts: Facts) -> str:
    """Log messages that nobody asked for."""
    line = (
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"' + b"x" * 100 + b'"}}\n'
    )
    for _ in range(facts["lines"] // 100):
        os.write(1, line * 100)
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
