"""A server whose proportional memory the kernel does not show counts what it has, not what it can make of few pages."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gateway.observability import process_memory as module
from gateway.observability.process_memory import machine_memory, resident_bytes, tree_bytes
from tests.requirements import requirement
from transports.upstream.process_tree import trees

pytestmark = pytest.mark.skipif(machine_memory() is None, reason="this system does not tell the memory of processes")

MIB = 1 << 20
REST = 24 * MIB  # more than the reaper and an idle Python

OWN = "held = bytearray(b'1') * (64 << 20)"
FORKED = f"import os, signal\n{OWN}\nfor _ in range(20): os.fork() or signal.pause()"
MAPPED = """
import mmap, os
fd = os.memfd_create("x")
os.ftruncate(fd, 16 << 20)
held = [mmap.mmap(fd, 16 << 20, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE) for _ in range(100)]
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Start a program below a process that stands for its reaper, whose id is returned."""
    monkeypatch.setattr(module, "proportional_bytes", lambda pid: None)  # the kernel shows root all
    monkeypatch.setattr(module, "_meminfo", lambda: {b"Shmem": 20 * MIB})
    with ExitStack() as stack:

        def start(program: str) -> int:
            program = f"{program}\nprint('ready', flush=True)\ninput()"
            top = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {program!r}])"
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", top],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            return process.pid

        yield start


def resident_below(top: int) -> int:
    return sum(resident_bytes(pid) or 0 for pid in trees([top], most=99)[top][1:])


@requirement("ops.memory")
def test_the_pages_of_a_process_count(server: Callable[[str], int]) -> None:
    top = server(OWN)
    assert 64 * MIB < tree_bytes([top])[top] < 64 * MIB + REST


@requirement("ops.memory")
def test_shared_memory_counts_no_more_than_the_machine_has(server: Callable[[str], int]) -> None:
    tops = [server(MAPPED), server(MAPPED)]
    assert resident_below(tops[0]) > 1600 * MIB
    found = tree_bytes(tops)
    assert found.keys() == set(tops)
    assert 20 * MIB < sum(found.values()) < 20 * MIB + 2 * REST


@requirement("ops.memory")
def test_of_forked_processes_the_largest_counts(server: Callable[[str], int]) -> None:
    top = server(FORKED)
    assert resident_below(top) > 20 * 64 * MIB
    assert 64 * MIB < tree_bytes([top])[top] < 2 * (64 * MIB + REST)


@requirement("ops.memory")
def test_no_more_processes_are_looked_at_than_is_asked(
    server: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = server(FORKED)
    whole = trees([top], most=99)[top]
    assert len(whole) == 22
    assert trees([top], most=5)[top] == whole[:5]
    assert trees([top], most=1)[top] == [top]
    monkeypatch.setattr(module, "_MOST_IN_TREE", 1)
    assert tree_bytes([top])[top] < 64 * MIB + REST
