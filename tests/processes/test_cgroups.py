"""Servers in cgroups of their own. Limits are tried where the kernel has controllers for them (`make kernels`)."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes.children import DAEMON, Family, Recorder, parent_of, until
from tests.processes.places import KERNEL, WHO
from tests.processes.test_gates import Heard
from tests.requirements import requirement
from tests.support.subtree import controllers_here, delegated, why_no_subtree
from tests.support.walled import NOBODY, ROOT, USERS, Outcome, python_for, python_grants, run_walled
from transports.upstream.cgroup_delegation import LEAF, LOCK_WITHIN_S, Delegation, find_delegation
from transports.upstream.child_process import Command, Process, ProcessFailed
from transports.upstream.fork_server_client import ForkServer
from transports.upstream.walls.wall_specification import Limits, Reach, Walls

pytestmark = [
    pytest.mark.skipif(bool(why_no_subtree()), reason=why_no_subtree() or "nothing is missing"),
]

HERE: Final = controllers_here() if not why_no_subtree() else frozenset()
needs_limits: Final = pytest.mark.skipif(
    not {"memory", "pids", "cpu"} <= HERE, reason="this kernel's cgroups of version 2 have no memory, pids or cpu"
)
WALLS: Final = Walls(profile="tried", grants=python_grants(), reach=Reach())
WHERE: Final = """
import json, os, subprocess
def where():
    return open("/proc/self/cgroup").read().split("0::")[1].split()[0]
print(json.dumps(where()), flush=True)
if os.fork() == 0:
    os.setsid()
    print(json.dumps(where()), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def subtree() -> Iterator[Path]:
    with delegated(None) as folder:
        yield folder


def groups(subtree: Path) -> list[Path]:
    """The groups of servers."""
    return [each for each in subtree.glob("mcp-servers.*/*") if each.is_dir()]


def folders(subtree: Path) -> list[Path]:
    """The folders of groups, one for each fork server."""
    return [*subtree.glob("mcp-servers.*")]


def walled(family: Family, program: str, limits: Limits | None = None) -> Command:
    argv = (python_for(None), "-I", "-S", "-c", program)
    return replace(family.command(*argv), walls=replace(WALLS, limits=limits or Limits()))


@asynccontextmanager
async def started(
    subtree: Path, command: Command, heard: Heard | None = None
) -> AsyncIterator[tuple[Process, Recorder]]:
    recorder = Recorder()
    gates = None if heard is None else heard.gates
    async with ForkServer(gates, str(subtree)) as fork_server:
        fields = {"server": "x", "session": "abcdefgh"}
        yield await fork_server.spawn(command, recorder, fields=lambda: fields), recorder


@requirement("box.cgroup")
@pytest.mark.parametrize("who", WHO)
def test_a_server_and_what_it_starts_are_in_a_group_of_their_own(who: str) -> None:
    """Its gateway has moved to the leaf: `run_walled` starts one in the root of the subtree."""
    user, apart = WHO[who]
    if apart and KERNEL.namespaces:
        pytest.skip(f"here, {KERNEL.namespaces}")
    with delegated(user) as subtree:
        walls = replace(WALLS, grants=python_grants(user), namespaces=bool(apart), required=True)
        outcome = run_walled(WHERE, walls, user=user, cgroup=str(subtree))
        assert (outcome.failed, outcome.code, outcome.errors) == ("", 0, [])
        own, of_child = map(Path, outcome.said)
        assert own == of_child and own.parts[-3] == subtree.name and own.parts[-2].startswith("mcp-servers.")
        assert not folders(subtree)
        assert (subtree / LEAF).is_dir() and not (subtree / "cgroup.procs").read_text()


@requirement("box.cgroup")
def test_where_a_child_cannot_be_born_in_a_group_it_moves_there_first(subtree: Path) -> None:
    """As in containers, whose filters refuse clone3."""
    program = (
        "import os, sys\n"
        "from transports.upstream import cgroups\n"
        "from transports.upstream.cgroup_delegation import Delegation\n"
        "from transports.upstream.walls.wall_specification import Limits, Walls\n"
        "cgroups.numbers = lambda: {'clone3': 100_000}\n"
        f"group = cgroups.Groups(Delegation(root={str(subtree)!r})).group(Walls(profile='x', grants=()))\n"
        "pid = group.fork()\n"
        "if pid == 0:\n"
        "    group.enter()\n"
        "    print(open('/proc/self/cgroup').read())\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert f"0::/{subtree.name}/mcp-servers." in done.stdout, done.stderr


@requirement("box.cgroup")
async def test_the_group_of_a_killed_reaper_is_ended_and_removed(subtree: Path) -> None:
    family = Family()
    async with started(subtree, walled(family, DAEMON)) as (process, recorder):
        assert await until(lambda: recorder.lines) and len(family.members()) == 2
        [group] = groups(subtree)
        os.kill(parent_of(process.pid), signal.SIGKILL)
        assert await until(lambda: not group.exists())
        assert not family.members()


@requirement("box.cgroup")
async def test_what_outlives_all_of_a_gateway_is_ended_at_the_next_start(subtree: Path) -> None:
    family = Family()
    async with started(subtree, walled(family, DAEMON)) as (process, recorder):
        assert await until(lambda: recorder.lines)
        reaper = parent_of(process.pid)
        for pid in (parent_of(reaper), reaper):  # the fork server first
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), 60)
        assert await until(lambda: len(family.members()) == 1)  # the daemon, which nobody knows any more
        [left] = groups(subtree)
    async with started(subtree, walled(Family(), "print(1, flush=True)")) as (process, recorder):
        assert not left.exists() and not left.parent.exists() and not family.members()
        await asyncio.wait_for(process.wait(), 60)
    assert not folders(subtree)


@requirement("box.cgroup")
async def test_the_groups_of_another_gateway_that_runs_are_left_alone(subtree: Path) -> None:
    family = Family()
    async with started(subtree, walled(family, DAEMON)) as (_, recorder):
        assert await until(lambda: recorder.lines)
        async with started(subtree, walled(Family(), DAEMON)) as (_, another):
            assert await until(lambda: another.lines)
            assert len({group.parent for group in groups(subtree)}) == 2
        assert len(family.members()) == 2


@requirement("box.cgroup")
async def test_a_server_without_walls_has_no_group(subtree: Path) -> None:
    async with started(subtree, Family().python(DAEMON)) as (_, recorder):
        assert await until(lambda: recorder.lines)
        assert not groups(subtree)


@requirement("box.cgroup")
async def test_nothing_starts_without_its_group_where_there_is_a_subtree(subtree: Path) -> None:
    async with started(subtree, walled(Family(), "print(1)")):
        (subtree / "cgroup.max.descendants").write_text("1", encoding="ascii")
        async with ForkServer(None, str(subtree)) as another:
            with pytest.raises(ProcessFailed, match="could not be built \\(cgroup\\)"):
                await another.spawn(walled(Family(), "print(1)"), Recorder())


@requirement("box.required")
def test_a_required_limit_without_a_controller_stops_the_start_of_a_server() -> None:
    """The gateway has refused to start before; this is the second lock."""
    outcome = run_walled("print(1)", replace(WALLS, limits=Limits(processors=0.5), required=True))
    assert "is required, but cannot be enforced here" in outcome.failed and "(processors)" in outcome.failed


@requirement("box.cgroup")
def test_a_gateway_takes_only_what_is_delegated_to_it(subtree: Path) -> None:
    ask = "import json, dataclasses\nfrom transports.upstream.cgroup_delegation import *\n"
    inside = ["sh", "-c", f'echo 0 > {subtree}/cgroup.procs; exec "$@"', "sh", sys.executable, "-c"]

    def says(program: str) -> dict[str, Any]:
        command = [*inside, f"{ask}print(json.dumps(dataclasses.asdict({program})))"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    assert says("find_delegation()")["root"] == str(subtree) and not (subtree / LEAF).exists()
    assert says("find_delegation('off')") == {"root": "", "controllers": [], "lacks": "gateway.cgroup is off"}
    os.removexattr(subtree, "user.delegate")
    assert says("prepare_delegation()")["lacks"] == f"the cgroup /{subtree.name} is not delegated to the gateway"
    assert not (subtree / LEAF).exists()
    assert says(f"prepare_delegation({str(subtree)!r})")["root"] == str(subtree) and (subtree / LEAF).is_dir()
    inside[2] = inside[2].replace("/cgroup.procs", f"/{LEAF}/cgroup.procs")  # a gateway that is started again by ours
    assert says("prepare_delegation()")["root"] == str(subtree)
    assert "is not a cgroup" in find_delegation("/etc").lacks


@requirement("box.cgroup")
def test_a_lock_that_a_server_holds_on_the_subtree_delays_a_start_and_stops_none(subtree: Path) -> None:
    held = os.open(subtree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        program = (
            f"from transports.upstream.cgroup_delegation import *\nprint(prepare_delegation({str(subtree)!r}).root)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LOCK_WITHIN_S + 10
        )
        assert done.stdout.strip() == str(subtree), done.stderr
    finally:
        os.close(held)


@requirement("box.cgroup")
@pytest.mark.skipif(len(USERS) == 1, reason="needs root")
def test_a_folder_that_is_not_writable_is_not_used(subtree: Path) -> None:
    program = f"from transports.upstream.cgroup_delegation import *\nprint(prepare_delegation({str(subtree)!r}).lacks)"
    done = subprocess.run(
        [python_for(NOBODY), "-c", program],
        env={"PYTHONPATH": str(ROOT)},
        cwd="/",
        user=NOBODY,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "may not write" in done.stdout, done.stderr


# -- limits, where the kernel has controllers for them

MEMORY_MB: Final = 96
CHILDREN: Final = """
import os, time
print(1, flush=True)
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(32 << 20)
        for n in range(0, len(held), 4096):
            held[n] = 1
        time.sleep(60)
time.sleep(60)
"""
MEMORY_FILE: Final = """
import os
print(1, flush=True)
file = os.memfd_create("x")
for _ in range(512):
    os.write(file, b"x" * (1 << 20))
print(2, flush=True)
"""
FORKS: Final = """
import json, os, time
started, error = 0, 0
for _ in range(64):
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except OSError as refused:
        error = refused.errno
        break
    started += 1
print(json.dumps([started, error]), flush=True)
time.sleep(1.5)
"""
BUSY: Final = """
import json, os, time
before, end = sum(os.times()[:4]), time.monotonic() + 2
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        while time.monotonic() < end:
            pass
        os._exit(0)
for _ in range(2):
    os.wait()
print(json.dumps(sum(os.times()[:4]) - before), flush=True)
"""


@needs_limits
@requirement("box.tree-limits")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("program", [CHILDREN, MEMORY_FILE], ids=["many processes", "files of memory"])
def test_the_memory_of_all_processes_together_has_a_limit(user: int | None, program: str) -> None:
    limits = Limits(memory_bytes=1 << 30, total_memory_bytes=MEMORY_MB << 20, total_is_set=True)
    with delegated(user) as subtree:
        outcome = in_subtree(program, limits, user, subtree)
    assert outcome.said == [1] and outcome.code == -signal.SIGKILL, outcome
    assert outcome.why == f"its processes had more than {MEMORY_MB} MiB of memory together (sandbox.total_memory_mb)"


@needs_limits
@requirement("box.tree-limits")
async def test_a_server_that_had_too_much_memory_is_told_of(subtree: Path) -> None:
    heard = Heard()
    limits = Limits(total_memory_bytes=MEMORY_MB << 20)
    async with started(subtree, walled(Family(), MEMORY_FILE, limits), heard) as (process, _):
        await asyncio.wait_for(process.wait(), 30)
        assert await until(lambda: heard.counts["memory"] == 1), heard.counts
    [row] = heard.shown.of("abcdefgh")
    assert (row.kind, row.what, row.allows) == ("memory", str(MEMORY_MB), "sandbox.total_memory_mb")
    [event] = heard.events
    assert event["reason"] == (
        f"server 'x' was refused more than {MEMORY_MB} MiB of memory (its processes had more together, and were "
        "ended); to allow more: sandbox.total_memory_mb"
    )


@needs_limits
@requirement("box.tree-limits")
@pytest.mark.parametrize("user", USERS)
def test_the_kernel_starts_no_more_processes_than_the_limit(user: int | None) -> None:
    with delegated(user) as subtree:
        outcome = in_subtree(FORKS, Limits(processes=20), user, subtree)
    assert outcome.said == [[19, 11]] and outcome.code == 0, outcome  # EAGAIN


@needs_limits
@requirement("box.tree-limits")
async def test_starts_that_the_kernel_refuses_are_seen_while_the_server_runs(subtree: Path) -> None:
    heard = Heard()
    command = walled(Family(), FORKS.replace("1.5", "60"), Limits(processes=20))
    async with started(subtree, command, heard):
        assert await until(lambda: heard.counts["processes"] == 1), heard.counts
    assert [event["reason"] for event in heard.events] == [
        "server 'x' was refused more than 20 processes and threads (no more are started); to allow more: "
        "sandbox.processes"
    ]


@needs_limits
@requirement("box.tree-limits")
def test_the_time_of_processors_is_shared_out(subtree: Path) -> None:
    [took] = in_subtree(BUSY, Limits(processors=0.5), None, subtree).said
    assert 0 < took < 1.6, took  # two processes that are busy for 2 s each


def in_subtree(program: str, limits: Limits, user: int | None, subtree: Path) -> Outcome:
    walls = replace(WALLS, grants=python_grants(user), limits=limits, required=True)
    return run_walled(program, walls, user=user, cgroup=str(subtree))


@requirement("box.required")
def test_a_limit_that_somebody_asked_for_is_missing_without_a_controller() -> None:
    nothing = Delegation(lacks="there are none")
    asked = Limits(total_memory_bytes=64 << 20, total_is_set=True, processors=1.5)
    assert [*nothing.missing(asked)] == [
        "Its processes may have more than 64 MiB of memory together (total_memory_mb): there are none.",
        "Its processes may use more than the time of 1.5 processors together (processors): there are none.",
    ]
    assert [*nothing.missing(Limits(total_memory_bytes=64 << 20))] == []  # the default of a profile
    assert [*Delegation(root="/x", controllers=("memory", "cpu")).missing(asked)] == []
