"""Which processes the gate lets a server name, and what it answers about others and about those that are gone."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.context.state_api import ProcessTree
from tests.requirements import requirement
from transports.upstream.process_tree import below
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener
from transports.upstream.walls.raw_system_calls import NUMBERS, numbers
from transports.upstream.walls.resolved_paths import resolved
from transports.upstream.walls.system_call_gate import ProcessCalls

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.uname().machine not in NUMBERS, reason="the gate is made for two machines"
    ),
]


class Answers(Listener):
    """A listener without a kernel: keeps the errno of the last answer, 0 if the kernel may make the call."""

    def __init__(self) -> None:
        self.last = -1

    def answer(self, made: InterceptedCall, error: int = 0) -> None:
        self.last = error

    def proceed(self, made: InterceptedCall) -> None:
        self.last = 0


class Asked:
    """The calls of a server whose reaper is this process."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []
        self._answers = Answers()
        self._calls = ProcessCalls(self._answers, lambda kind, what, why: self.refused.append((kind, what)))

    def __call__(self, name: str, *arguments: int) -> int:
        padded = (*(each & 0xFFFF_FFFF_FFFF_FFFF for each in arguments), 0, 0, 0, 0, 0, 0)[:6]
        self._calls.decide(InterceptedCall(1, os.getpid(), numbers()[name], padded))
        return self._answers.last


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A child in a group of its own, with a child."""
    command = ["/bin/sh", "-c", "sleep 60 & echo; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        os.killpg(process.pid, signal.SIGKILL)


@requirement("box.siblings")
def test_its_own_processes_and_their_groups_may_be_named(child: subprocess.Popen[bytes]) -> None:
    asked = Asked()
    [grandchild] = below([child.pid])[1:]
    for pid in (child.pid, grandchild, -child.pid):
        assert asked("kill", pid, 15) == 0, pid
    assert asked("prlimit64", grandchild) == asked("setpriority", 0, child.pid) == asked("tgkill", child.pid, 1) == 0
    assert asked.refused == []


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process in a group of its own that is not below this one: its parent has ended."""
    command = ["/bin/sh", "-c", "setsid sleep 60 > /dev/null 2>&1 & echo $!"]
    pid = int(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)
    deadline = time.monotonic() + 10
    while os.getpgid(pid) != pid:
        assert time.monotonic() < deadline
    yield pid
    os.kill(pid, signal.SIGKILL)


@requirement("box.siblings")
def test_all_others_may_not(child: subprocess.Popen[bytes], stranger: int) -> None:
    asked = Asked()
    others = (1, os.getpid(), os.getppid(), -1, stranger, -stranger)
    assert {pid: asked("kill", pid, 0) for pid in others} == dict.fromkeys(others, errno.EPERM)
    assert asked("sched_setaffinity", os.getppid()) == errno.EPERM
    assert asked.refused == [("process", "kill")] * len(others) + [("process", "sched_setaffinity")]


@requirement("box.siblings")
def test_a_process_that_is_gone_is_not_there_rather_than_forbidden() -> None:
    """Programs ask with signal 0 whether a process lives: EPERM would be a yes."""
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    asked = Asked()
    assert asked("kill", gone.pid, 0) == errno.ESRCH
    assert asked.refused == []


# -- the processes of a server are those below its reaper, and the reaper


@requirement("box.siblings")
async def test_a_server_its_descendants_and_its_reaper_are_in_the_tree_and_nobody_else(
    child: subprocess.Popen[bytes],
) -> None:
    [grandchild] = below([child.pid])[1:]
    ours, other = ProcessTree(), ProcessTree()
    ours.started(child.pid)
    other.started(grandchild)  # so that its reaper is the server
    assert [await ours.has(pid) for pid in (child.pid, grandchild, os.getpid())] == [True] * 3
    assert [await ours.has(pid) for pid in (1, 0, -1, os.getppid(), 2**31 - 1)] == [False] * 5
    assert not await other.has(os.getpid()), "what is above is not below"


@requirement("box.siblings")
async def test_a_process_that_connects_before_its_start_is_told_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ProcessTree()
    early = asyncio.ensure_future(tree.has(os.getpid()))
    await asyncio.sleep(0)
    assert not early.done()
    tree.started(os.getpid())
    assert await early, "this process is below its parent"
    monkeypatch.setattr("gateway.context.state_api._START_S", 0.0)
    assert not await ProcessTree().has(os.getpid()), "nothing is served for a process that never starts"


@requirement("box.siblings")
async def test_a_server_without_walls_may_do_its_work_elsewhere() -> None:
    tree = ProcessTree()
    tree.started(None)
    assert await tree.has(1)


@requirement("box.sockets")
def test_a_socket_is_named_from_the_folder_of_the_process_that_names_it(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=tmp_path) as other:
        for path in ("s", "/proc/self/cwd/s", "/proc/thread-self/cwd/s"):
            assert resolved(path, other.pid) == f"{tmp_path.resolve()}/s"
        assert resolved("/dev/stdin", other.pid) == os.path.realpath(f"/proc/{other.pid}/fd/0")
