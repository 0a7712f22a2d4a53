"""Small programs for the process tests to run, and how to find the ones still alive."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from transports.upstream.child_process import Command, Process
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.process_tree import parent

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\n"

STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
    "while True: time.sleep(60)\n"
)
"""Ignores the end of its stdin and SIGTERM."""

SETSID = (
    "import subprocess, sys\n"
    "subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('ready', flush=True)\nsys.stdin.read()\n"
)
"""Starts a child in a process session of its own (setsid)."""

DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        [os.close(fd) for fd in (0, 1, 2)]\n"
    "        time.sleep(600)\n"
    "    os._exit(0)\n"
    "os.wait()\nprint('ready', flush=True)\nsys.stdin.read()\n"
)
"""Starts a daemon: a twice-forked process in its own process session, with stdin, stdout and stderr closed."""


class Recorder:
    """A `LineSink` that records lines, oversized lines and exit codes in order."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.oversize: list[tuple[bytes, bytes]] = []
        self.codes: list[int | None] = []
        self.lines_at_exit = 0

    def line(self, line: bytes) -> None:
        self.lines.append(line)

    def oversized(self, head: bytes, tail: bytes) -> None:
        self.oversize.append((head, tail))

    def exited(self, code: int | None) -> None:
        self.codes.append(code)
        self.lines_at_exit = len(self.lines)


class Family:
    """The processes of one test and their descendants, recognised by a variable in their environment."""

    def __init__(self, tag: str | None = None) -> None:
        self.tag = tag or uuid4().hex

    def command(self, *argv: str, cwd: str | None = None) -> Command:
        return Command(argv=argv, env={"PATH": os.environ["PATH"], "FAMILY": self.tag}, cwd=cwd)

    def python(self, program: str) -> Command:
        return self.command(sys.executable, "-I", "-S", "-c", program)

    def members(self) -> list[int]:
        """The pids of those that are alive."""
        mark = f"FAMILY={self.tag}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):  # a zombie's is empty
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    async def gone(self, within_s: float = 2.0) -> bool:
        return await until(lambda: not self.members(), within_s)


class House:
    """A fork server, the family of the processes that it starts for a test, and the sink of what these say."""

    def __init__(self, fork_server: ForkServer, family: Family, sink: Recorder) -> None:
        self.fork_server, self.family, self.sink = fork_server, family, sink

    async def start(self, *argv: str, cwd: str | None = None, sink: Recorder | None = None) -> Process:
        return await self.fork_server.spawn(self.family.command(*argv, cwd=cwd), sink or self.sink)

    async def python(self, program: str, *, sink: Recorder | None = None, **more: Any) -> Process:
        return await self.fork_server.spawn(self.family.python(program), sink or self.sink, **more)

    async def ready(self, program: str) -> Process:
        """As `python`, of a program that has said something."""
        process = await self.python(program)
        assert await until(lambda: self.sink.lines)
        return process


async def until(condition: Callable[[], object], within_s: float = 10.0) -> bool:
    """Poll a condition while the event loop runs. Returns False if it is not true within `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


def parent_of(pid: int) -> int:
    return parent(pid) or 0


def open_fds() -> int:
    """The number of file descriptors that this process has open, without what only garbage of other tests holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def ignored_signals() -> int:
    """The signals that this process ignores, as a mask."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), 16)
