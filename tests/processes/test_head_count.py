"""After many starts, the reapers count below which something was started."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.requirements import requirement
from transports.upstream.process_tree import StartCounter

pytestmark = pytest.mark.skipif(not Path("/proc/1/stat").exists(), reason="this system does not show all processes")

STARTS = 80
OTHERS = range(1 << 23, (1 << 23) + 10_000)  # numbers that no process gets: so many that counting would be more work


class Parent:
    """A process that stands for a reaper, and starts others when it is told to."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def does(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\necho done\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"done\n"


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            )
            for _ in range(3)
        ]
        yield [Parent(process) for process in processes]
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)


def many(line: str) -> str:
    return f"for n in $(seq {STARTS}); do {line} >/dev/null & done"


@requirement("box.count")
def test_those_count_below_which_something_was_started(parents: list[Parent]) -> None:
    starter, idle, nested = parents
    starts = StartCounter()
    starter.does(many("sleep 30"))
    nested.does("(sleep 30 >/dev/null & sleep 30 >/dev/null) >/dev/null &")
    found = set(starts.below({starter.pid, idle.pid, nested.pid, *OTHERS}))
    assert found == {starter.pid, nested.pid}


@requirement("box.count")
def test_nobody_counts_for_processes_that_have_ended_or_belong_to_others(parents: list[Parent]) -> None:
    starter, idle, stranger = parents
    starts = StartCounter()
    starter.does(many("true") + "; wait")
    stranger.does(many("sleep 30"))
    assert set(starts.below({starter.pid, idle.pid, *OTHERS})) == set()


@requirement("box.count")
def test_all_count_if_that_is_less_work(parents: list[Parent]) -> None:
    starter, idle, _ = parents
    starts = StartCounter()
    starter.does(many("true") + "; wait")
    starter.does(many("true") + "; wait")
    assert set(starts.below({starter.pid, idle.pid})) == {starter.pid, idle.pid}
