"""What of the walls is told to the fork server once, and the rulesets that it keeps ready."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.requirements import requirement
from transports.upstream.prepared_walls import (
    ANNOUNCES,
    FRESH_S,
    IDLE_S,
    KEPT_S,
    MOST,
    NUMBERS,
    READY,
    REQUEST,
    Announced,
    Prepared,
    Prototypes,
    close_all_but,
)
from transports.upstream.walls.wall_specification import Grant, Reach, Walls

pytestmark = requirement("box.prepared")

COMMON = Walls(
    profile="standard", grants=(Grant("/usr", "rx"), Grant("/etc/hosts")), common=2, reach=Reach(public=True)
)


class Machine:
    """Where rulesets are made. Each is a file of its own, and known by its inode."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.made: list[int] = []
        self.fails = False
        self.prototypes = Prototypes(self.prepare, lambda: self.now)

    def prepare(self, walls: Walls) -> int:
        if self.fails:
            raise FileNotFoundError(2, "No such file or directory", "/usr")
        fd = os.memfd_create("ruleset")
        self.made.append(os.fstat(fd).st_ino)
        return fd

    def learn(self, number: int, walls: Walls = COMMON) -> None:
        file = os.memfd_create("walls")
        os.write(file, json.dumps(walls.to_json()).encode())
        self.prototypes.learn(number, file)
        os.close(file)

    def take(self) -> int | None:
        """The ruleset of a start, which ends."""
        prepared = self.prototypes.take(1, ruleset=True)
        assert prepared is not None and prepared.walls == COMMON
        if prepared.ruleset is None:
            return None
        with os.fdopen(prepared.ruleset) as ruleset:
            return os.fstat(ruleset.fileno()).st_ino

    def ready(self) -> list[int]:
        """The rulesets that are open. Other tests of this process may have files open under their numbers."""
        found = []
        for number in sorted(map(int, os.listdir("/proc/self/fd"))):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:ruleset"):
                    found.append(os.fstat(number).st_ino)
        return found

    def idle(self, seconds: float = IDLE_S) -> None:
        """As the fork server does while nobody starts anything."""
        end = self.now + seconds
        while (due_ms := self.prototypes.due_ms()) is not None and self.now + due_ms / 1_000 <= end + 0.01:
            self.now += due_ms / 1_000
            self.prototypes.renew()
        self.now = max(self.now, end)


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    machine.learn(1)
    yield machine
    machine.prototypes.close()
    assert not machine.ready()


def test_a_ruleset_is_given_to_one_start_only(machine: Machine) -> None:
    assert machine.take() is None, "nobody had started it before"
    machine.idle()
    assert len(machine.made) == READY
    given = [machine.take() for _ in range(READY + 1)]
    assert given == [*machine.made[:READY], None]
    machine.idle()
    assert [machine.take() for _ in range(READY)] == machine.made[READY:]


def test_nothing_is_prepared_while_starts_follow_each_other(machine: Machine) -> None:
    for _ in range(10):
        assert machine.take() is None
        machine.idle(IDLE_S / 2)
    assert not machine.made
    machine.idle()
    assert len(machine.made) == READY


def test_an_old_ruleset_is_not_used(machine: Machine) -> None:
    machine.take()
    machine.idle()
    machine.now += FRESH_S + 1  # so long it was busy
    assert machine.take() is None
    assert not machine.ready()


def test_rulesets_are_renewed_for_a_while_after_the_last_start(machine: Machine) -> None:
    machine.take()
    machine.idle(KEPT_S / 2)
    assert len(machine.made) > 2 * READY and machine.ready() == machine.made[-READY:]
    assert machine.take() is not None
    machine.idle(KEPT_S + FRESH_S)
    assert not machine.ready() and machine.prototypes.due_ms() is None


def test_without_a_ruleset_the_start_makes_its_own(machine: Machine) -> None:
    machine.fails = True
    machine.take()
    machine.idle()
    assert machine.prototypes.due_ms() is None, "it is tried again after the next start"
    assert machine.take() is None
    machine.fails = False
    machine.idle()
    assert machine.take() is not None
    assert machine.prototypes.take(1, ruleset=False) == Prepared(COMMON), "it cannot use one"


def test_an_unknown_number_starts_nothing(machine: Machine) -> None:
    assert machine.prototypes.take(2, ruleset=True) is None
    machine.learn(2)
    assert machine.prototypes.take(1, ruleset=True) is None, "the same walls were told anew: a start had failed"
    for number in range(3, 3 + MOST):
        machine.learn(number, replace(COMMON, grants=(Grant(f"/opt/{number}"),), common=1))
    assert machine.prototypes.take(2, ruleset=True) is None, "it was used least"


def test_a_forked_process_keeps_the_ruleset_of_its_start_only() -> None:
    if child := os.fork():  # in this process, other tests may have files open under these numbers
        assert os.waitpid(child, 0)[1] == 0
        return
    status = 1
    try:
        os.closerange(NUMBERS.start, NUMBERS.stop)
        machine = Machine()
        machine.learn(1)
        machine.take()
        machine.idle()
        prepared = machine.prototypes.take(1, ruleset=True)
        assert prepared is not None and prepared.ruleset is not None and len(machine.ready()) == READY
        close_all_but(prepared.ruleset)
        assert machine.ready() == [os.fstat(prepared.ruleset).st_ino]
        close_all_but(None)
        assert not machine.ready()
        status = 0
    finally:
        os._exit(status)


def test_a_prototype_is_told_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        announced, other = Announced(), replace(COMMON, profile="other")
        assert [announced.number(ours, walls) for walls in (None, COMMON, COMMON, other, COMMON)] == [0, 1, 1, 2, 1]
        prototypes = Prototypes()
        for number, walls in ((1, COMMON), (2, other)):
            request, (file,), _, _ = socket.recv_fds(theirs, 16, 2)
            assert request == REQUEST.pack(ANNOUNCES, number)
            prototypes.learn(number, file)
            os.close(file)
            assert prototypes.take(number, ruleset=False) == Prepared(walls)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        announced.forget(COMMON)
        assert announced.number(ours, COMMON) == 3
