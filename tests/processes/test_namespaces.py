"""Servers with namespaces of their own end as all others do, completely, and are known by their numbers outside."""

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sandbox.sandbox_checks import ask_kernel
from tests.processes.children import DAEMON, Family, Recorder, parent_of, until
from tests.requirements import requirement
from tests.support.walled import python_grants
from transports.upstream.child_process import Command, ProcessFailed
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.walls.wall_specification import Grant, Reach, Walls

KERNEL = ask_kernel()
pytestmark = [
    pytest.mark.skipif(bool(KERNEL.namespaces), reason=f"here, {KERNEL.namespaces}"),
]


def walled(command: Command) -> Command:
    return replace(command, walls=Walls(profile="strict", grants=python_grants(), namespaces=True, required=True))


@requirement("box.siblings")
async def test_its_number_is_that_outside(fork_server: ForkServer, family: Family) -> None:
    program = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); sys.exit(7)"
    sink = Recorder()
    process = await fork_server.spawn(walled(family.python(program)), sink)
    assert family.members() == [process.pid]
    assert await until(lambda: sink.lines)
    assert sink.lines == [b"2"]
    process.stdin.finish()
    assert await process.wait() == 7


@requirement("box.siblings")
async def test_nothing_of_it_survives_a_kill(fork_server: ForkServer, family: Family) -> None:
    sink = Recorder()
    process = await fork_server.spawn(walled(family.python(DAEMON)), sink)
    assert await until(lambda: sink.lines)
    process.kill()
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    assert family.members() == []


async def test_it_is_asked_to_end_before_it_is_killed(fork_server: ForkServer, family: Family) -> None:
    program = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('ready', flush=True); signal.pause()"
    )
    sink = Recorder()
    process = await fork_server.spawn(walled(family.python(program)), sink)
    assert await until(lambda: sink.lines)
    assert await process.shutdown(grace_s=0.5) == 5


@requirement("box.siblings")
async def test_the_kernel_ends_everything_with_a_reaper_that_is_killed(fork_server: ForkServer, family: Family) -> None:
    sink = Recorder()
    process = await fork_server.spawn(walled(family.python(DAEMON)), sink)
    assert await until(lambda: sink.lines)
    os.kill(parent_of(process.pid), signal.SIGKILL)
    assert await family.gone()
    await asyncio.wait_for(process.wait(), 60)


async def test_a_failure_names_its_step(fork_server: ForkServer, family: Family) -> None:
    gone = Walls(profile="strict", grants=(Grant(path="/does/not/exist", mode="rw"),), namespaces=True)
    with pytest.raises(ProcessFailed, match=r"'strict' could not be built \(namespaces\): .*'/does/not/exist'"):
        await fork_server.spawn(replace(family.command(sys.executable), walls=gone), Recorder())
    with pytest.raises(ProcessFailed, match="there is no program 'no-such-program' on its PATH"):
        await fork_server.spawn(walled(family.command("no-such-program")), Recorder())


SEES = """
import glob, json, os, socket, sys
tables = [*glob.glob("/proc/net/tcp*"), *glob.glob("/proc/[0-9]*/net/tcp*"), *glob.glob("/proc/[0-9]*/net/unix")]
print(json.dumps([open(path).read() for path in tables]), flush=True)
def attempt(family, address):
    try:
        with socket.socket(family) as one:
            one.settimeout(5)
            one.connect(address)
            return one.recv(9).decode()
    except OSError as error: return type(error).__name__
print(json.dumps(attempt(socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))))
print(json.dumps(attempt(socket.AF_UNIX, sys.argv[2])))
print(json.dumps([name for _, name in socket.if_nameindex()]), flush=True)
"""


@pytest.mark.parametrize("reached", ["nothing", "sockets", "port"])
@requirement("box.siblings", "box.network")
async def test_a_server_sees_no_sockets_of_the_machine_whatever_it_reaches(
    fork_server: ForkServer, family: Family, reached: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "unix")
    sink = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        port = listener.getsockname()[1]
        answering = [asyncio.create_task(_answer(each)) for each in (listener, unix)]
        reach = {
            "nothing": Reach(),
            "sockets": Reach(sockets=(path,)),
            "port": Reach(hosts=(f"127.0.0.1:{port}",), sockets=(path,)),
        }[reached]
        command = walled(family.command(sys.executable, "-I", "-S", "-c", SEES, str(port), path))
        assert command.walls is not None
        process = await fork_server.spawn(replace(command, walls=replace(command.walls, reach=reach)), sink)
        assert await asyncio.wait_for(process.wait(), 60) == 0, process.stderr_tail()
        for task in answering:
            task.cancel()
    seen, by_port, by_path, interfaces = map(json.loads, sink.lines)
    assert len(seen) >= 3
    assert not any(f":{port:04X} " in table or path in table for table in seen)
    assert by_port == ("there" if reached == "port" else "PermissionError")
    assert by_path == ("PermissionError" if reached == "nothing" else "there")
    assert "lo" in interfaces


async def _answer(listener: socket.socket) -> None:
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        with connection:
            await loop.sock_sendall(connection, b"there")
