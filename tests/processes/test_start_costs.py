"""What the start of a walled server leaves until it is needed, and what it takes over from the fork server."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes.children import Recorder, until
from tests.processes.places import needs_walls
from tests.requirements import requirement
from tests.support.walled import python_for, python_grants
from transports.upstream.fork_server import OOM_SCORE
from transports.upstream.process import Command, Process
from transports.upstream.process_tree import parent
from transports.upstream.spawn import ForkServer
from transports.upstream.walls.spec import Reach, Walls

pytestmark = [pytest.mark.anyio, needs_walls]

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


def walls(*, namespaces: bool = False) -> Walls:
    return Walls(profile="tried", grants=python_grants(), reach=Reach(public=True), namespaces=namespaces)


def reaper_of(process: Process) -> int:
    found = parent(process.pid)
    assert found is not None
    return found


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
    process = await started(fork_server, sink, walls(namespaces=namespaces))
    reaper = reaper_of(process)
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
    for given, expected in ((None, own), (walls(), OOM_SCORE), (walls(namespaces=True), OOM_SCORE), (None, own)):
        process = await started(fork_server, Recorder(), given)
        reaper = reaper_of(process)
        assert (oom_score(process.pid), oom_score(reaper)) == (expected, expected)
        assert oom_score(parent(reaper) or 0) == own  # the fork server
        process.kill()
        await process.wait()
