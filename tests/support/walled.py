"""Runs a Python script as a server behind walls, as the user of the tests and as one without privileges.

As a program (`python -m tests.support.walled`), it starts what its stdin describes, through a fork server of its own,
and prints what became of it.
"""

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from transports.upstream.child_process import Command, ProcessFailed
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.walls.wall_specification import Grant, Walls

ROOT: Final = Path(__file__).parents[2]
NOBODY: Final = 65_534
USERS: Final = (None, NOBODY) if os.geteuid() == 0 else (None,)
"""None: whoever runs the tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script printed, as JSON per line, and how it ended."""

    said: list[Any]
    errors: list[str]
    code: int | None
    failed: str
    """Why it was not started."""
    why: str = ""
    """Why the kernel ended it."""


def run_walled(
    script: str,
    walls: Walls | None,
    *,
    user: int | None = None,
    cwd: str | None = None,
    in_flight: int = 0,
    cgroup: str | None = None,
    missing: str = "",
) -> Outcome:
    """Run a Python script as a server behind walls, to its end. Meanwhile the user has so many descriptors on their way
    that nobody receives, which are more than who starts it may have open. `cgroup` is the folder of a cgroup that
    everything runs in, and that is delegated. `missing`: the part of the walls that the kernel lacks (`without.py`)."""
    python = python_for(user)
    walls_json = None if walls is None else walls.to_json()
    described = {"argv": [python, "-I", "-S", "-c", script], "walls": walls_json, "cwd": cwd, "in_flight": in_flight}
    described["cgroup"] = "off" if cgroup is None else None
    into = () if cgroup is None else ("sh", "-c", f'echo 0 > {cgroup}/cgroup.procs; exec "$@"', "sh")
    lacking = (python, str(ROOT / "tests/support/without.py"), missing) if missing else ()
    done = subprocess.run(
        [*into, *_as_words(user), *lacking, python, "-m", "tests.support.walled"],
        input=json.dumps(described),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return Outcome(**json.loads(done.stdout))


def _as_words(user: int | None) -> tuple[str, ...]:
    return () if user is None else ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")


def _as(user: int | None) -> Mapping[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


@cache
def python_for(user: int | None) -> str:
    """A Python that the user may start and that can read this repository."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [python, "-c", "import transports.upstream.fork_server_client"]
        try:
            tried = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, cwd="/", capture_output=True, **_as(user))
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    raise AssertionError(f"no Python of this version that user {user} may start with {ROOT}")


def python_grants(user: int | None = None) -> tuple[Grant, ...]:
    """What a Python needs that runs a script without site packages."""
    paths = "sys.prefix, sys.base_prefix, sys.executable, sysconfig.get_path('stdlib')"
    ask = f"import sys, sysconfig; print({paths}, sep='\\n')"
    asked = subprocess.run([python_for(user), "-c", ask], capture_output=True, text=True, check=True)
    environment, *found = asked.stdout.splitlines()
    folders = {str(Path(path).resolve()) for path in (*found, "/bin", "/lib", "/lib64", "/usr/lib", "/usr/bin")}
    folders.add(environment)  # by this name: below /tmp, a server with a /tmp of its own has only what is granted
    files = ("/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/proc")
    return (
        *(Grant(path=path, mode="rx", optional=True) for path in sorted(folders)),
        *(Grant(path=path, mode="rw" if path == "/dev/null" else "r", optional=True) for path in files),
    )


class _Heard:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def line(self, line: bytes) -> None:
        self.said.append(json.loads(line))

    def oversized(self, head: bytes, tail: bytes) -> None:
        raise AssertionError("a long line")

    def exited(self, code: int | None) -> None:
        """`wait` says it as well."""


async def run_here(argv: list[str], walls: dict[str, Any] | None, cwd: str | None, cgroup: str | None) -> Outcome:
    """Run a command behind walls from this process, with a fork server of its own, to its end."""
    heard, errors = _Heard(), bytearray()
    command = Command(
        argv=tuple(argv),
        env={"PATH": "/usr/bin:/bin"},
        cwd=cwd,
        walls=None if walls is None else Walls.from_json(walls),
    )
    async with ForkServer(cgroup=cgroup) as fork_server:
        if cgroup is None and (lacks := fork_server.delegation().lacks):
            raise AssertionError(lacks)
        try:
            process = await fork_server.spawn(command, heard, stderr=lambda line: errors.extend(line + b"\n"))
        except ProcessFailed as failed:
            return Outcome([], [], None, str(failed))
        code = await process.wait()
    return Outcome(heard.said, errors.decode().splitlines(), code, "", process.why_ended)


@contextlib.contextmanager
def _in_flight(most: int) -> Iterator[None]:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        for _ in range(0, most, 100):
            socket.send_fds(sender, [b"x"], [sender.fileno()] * 100)
        if most:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most - 50, hard))
        yield


def main() -> None:
    """Read what to start from stdin."""
    given = json.load(sys.stdin)
    with _in_flight(given["in_flight"]):
        outcome = asyncio.run(run_here(given["argv"], given["walls"], given["cwd"], given["cgroup"]))
    sys.stdout.write(json.dumps({name: getattr(outcome, name) for name in Outcome.__slots__}))


if __name__ == "__main__":
    main()
