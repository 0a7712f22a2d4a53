"""The processes of a server are those below its reaper, and the reaper."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.context.state_api import ProcessTree
from tests.requirements import requirement
from transports.upstream.walls.paths import resolved

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc: nothing is asked there"),
]

GRANDCHILD = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """The ids of a server, whose reaper this process stands for, and of a process that it has started."""
    with subprocess.Popen([sys.executable, "-c", GRANDCHILD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        below = int(process.stdout.readline())
        yield process.pid, below
        os.kill(below, signal.SIGKILL)


@requirement("box.siblings")
async def test_a_server_its_descendants_and_its_reaper_are_in_the_tree_and_nobody_else(
    family: tuple[int, int],
) -> None:
    ours, other = ProcessTree(), ProcessTree()
    ours.started(family[0])
    other.started(family[1])  # so that its reaper is the server
    assert [await ours.has(pid) for pid in (*family, os.getpid())] == [True] * 3
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
