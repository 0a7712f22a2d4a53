"""Walls whose common part was prepared before the start: they hold what walls hold that are built at the start."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes.children import Recorder, parent_of, until
from tests.processes.places import needs_walls
from tests.requirements import requirement
from tests.support.walled import python_for, python_grants
from transports.upstream.child_process import Command, Process, ProcessFailed
from transports.upstream.fork_server import OOM_SCORE
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.prepared_walls import IDLE_S
from transports.upstream.walls.wall_specification import Grant, Reach, Walls

pytestmark = [needs_walls, requirement("box.prepared")]

LOOKS: Final = """
import errno, json, os, sys
def error(path, flags):
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError as failure:
        return errno.errorcode[failure.errno]
    return ""
print(json.dumps([error(path + "/file", os.O_WRONLY | os.O_CREAT) for path in sys.argv[1:]]), flush=True)
print(json.dumps(sorted(map(int, os.listdir("/proc/self/fd")))), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in /tmp, which is another one with namespaces."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name).resolve()


def walls(*own: Path, common: tuple[Grant, ...] = (), namespaces: bool = False) -> Walls:
    shared = (*python_grants(), *common)
    grants = (*shared, *(Grant(str(path), "rw") for path in own))
    return Walls(profile="tried", grants=grants, common=len(shared), reach=Reach(), namespaces=namespaces)


async def look(fork_server: ForkServer, given: Walls, *paths: Path) -> tuple[bool, list[str], list[int]]:
    """Whether the walls of a server were prepared, the error with which it opens a file in each of the folders, and its
    descriptors with that of the list of them."""
    sink = Recorder()
    argv = (python_for(None), "-I", "-S", "-c", LOOKS, *map(str, paths))
    process = await fork_server.spawn(Command(argv=argv, env={"PATH": "/usr/bin:/bin"}, walls=given), sink)
    assert await until(lambda: len(sink.lines) == 2), process.stderr_tail()
    process.kill()
    await process.wait()
    return process.prepared, json.loads(sink.lines[0]), json.loads(sink.lines[1])


async def looked_prepared(fork_server: ForkServer, given: Walls, *paths: Path) -> tuple[list[str], list[int]]:
    """As `look`, of a start for which something was prepared."""
    for _ in range(50):
        prepared, errors, descriptors = await look(fork_server, given, *paths)
        if prepared:
            return errors, descriptors
        await asyncio.sleep(2 * IDLE_S)  # nothing is prepared while starts follow each other
    raise AssertionError("nothing was prepared")


@requirement("box.files")
async def test_what_was_prepared_opens_nothing_of_another_session(fork_server: ForkServer, folder: Path) -> None:
    sessions = [folder / name for name in ("a", "b")]
    for session in sessions:
        session.mkdir()
    for own in (0, 1, 0, 1):
        errors, descriptors = await looked_prepared(fork_server, walls(sessions[own]), *sessions)
        assert errors == ["" if number == own else "EACCES" for number in range(2)]
        assert descriptors == [0, 1, 2, 3], "no ruleset is left to it"


async def test_what_a_server_is_granted_afterwards_or_no_more_is_not_mixed_up(
    fork_server: ForkServer, folder: Path
) -> None:
    granted = Grant(str(folder), "rw")
    for _ in range(2):
        assert (await looked_prepared(fork_server, walls(common=(granted,)), folder))[0] == [""]
        assert (await looked_prepared(fork_server, walls(), folder))[0] == ["EACCES"]


async def test_a_program_that_was_replaced_meanwhile_is_started(fork_server: ForkServer, folder: Path) -> None:
    installed = folder / "installed"

    def install() -> None:
        installed.mkdir()
        (installed / "program").write_text("#!/bin/sh\necho up\nread x\n", encoding="ascii")
        (installed / "program").chmod(0o755)

    async def start() -> Process:
        sink = Recorder()
        given = walls(common=(Grant(str(installed), "rx"),))
        argv = (str(installed / "program"),)
        process = await fork_server.spawn(Command(argv=argv, env={"PATH": "/usr/bin:/bin"}, walls=given), sink)
        assert await until(lambda: sink.lines == [b"up"]), process.stderr_tail()
        process.kill()
        await process.wait()
        return process

    install()
    for _ in range(50):
        if (await start()).prepared:
            break
        await asyncio.sleep(2 * IDLE_S)
    else:
        raise AssertionError("nothing was prepared")
    installed.rename(folder / "before")
    install()
    for _ in range(3):
        await start()


@requirement("box.system")
async def test_what_cannot_be_prepared_starts_nothing(fork_server: ForkServer, folder: Path) -> None:
    missing = folder / "later"
    given = walls(common=(Grant(str(missing), "rw"),))
    for _ in range(3):
        with pytest.raises(ProcessFailed, match=r"could not be built \(files\): No such file or directory"):
            await look(fork_server, given, missing)
    missing.mkdir()
    assert (await looked_prepared(fork_server, given, missing))[0] == [""]


@requirement("box.siblings")
async def test_with_namespaces_the_common_part_is_told_and_not_prepared(fork_server: ForkServer, folder: Path) -> None:
    for _ in range(3):
        prepared, errors, _ = await look(fork_server, walls(folder, namespaces=True), folder, Path("/var"))
        assert not prepared and errors in (["", "EROFS"], ["", "EACCES"])


async def test_a_killed_fork_server_is_told_anew(fork_server: ForkServer, folder: Path) -> None:
    assert (await look(fork_server, walls(folder), folder))[1] == [""]
    (program,) = fork_server._programs
    os.kill(program.pid, 9)
    program.wait()
    assert (await looked_prepared(fork_server, walls(folder), folder))[0] == [""]


# -- what the start of a walled server leaves until it is needed, and what it takes over from the fork server

CONNECTS = """
import errno, socket, sys
print("up", flush=True)
sys.stdin.readline()
print(errno.errorcode[socket.socket().connect_ex(("10.0.0.5", 443))], flush=True)
sys.stdin.read()
"""


async def started(fork_server: ForkServer, sink: Recorder, walls: Walls | None) -> Process:
    argv = (sys.executable if walls is None else python_for(None), "-I", "-S", "-c", CONNECTS)
    process = await fork_server.spawn(Command(argv=argv, env={"PATH": "/usr/bin:/bin"}, walls=walls), sink)
    assert await until(lambda: sink.lines == [b"up"]), process.stderr_tail()
    return process


def reaching(*, namespaces: bool = False) -> Walls:
    return Walls(profile="tried", grants=python_grants(), reach=Reach(public=True), namespaces=namespaces)


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text("ascii"))


@requirement("box.network")
@pytest.mark.parametrize("namespaces", [False, True])
async def test_a_gate_is_opened_by_the_first_call_that_it_has_to_answer(
    fork_server: ForkServer, namespaces: bool
) -> None:
    sink = Recorder()
    process = await started(fork_server, sink, reaching(namespaces=namespaces))
    reaper = parent_of(process.pid)
    assert threads(reaper) == 1
    process.stdin.write(b"\n")
    assert await until(lambda: sink.lines[1:])
    assert sink.lines == [b"up", b"EACCES"]
    assert threads(reaper) == 2
    process.stdin.finish()
    assert await process.wait() == 0


@requirement("box.system")
async def test_a_walled_server_is_ended_before_the_gateway_when_memory_runs_out(fork_server: ForkServer) -> None:
    own = oom_score(os.getpid())
    for given, expected in ((None, own), (reaching(), OOM_SCORE), (reaching(namespaces=True), OOM_SCORE), (None, own)):
        process = await started(fork_server, Recorder(), given)
        reaper = parent_of(process.pid)
        assert (oom_score(process.pid), oom_score(reaper)) == (expected, expected)
        assert oom_score(parent_of(reaper)) == own  # the fork server
        process.kill()
        await process.wait()
