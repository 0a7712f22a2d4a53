"""The share of one server in the inotify watches of its user, with the kernel's own instances."""

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.places import needs_walls
from tests.requirements import requirement
from transports.upstream.walls import watchers
from transports.upstream.walls.file_calls import FileCalls
from transports.upstream.walls.gate_reports import RefusalQueue
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener
from transports.upstream.walls.spec import Grant
from transports.upstream.walls.system_calls import numbers
from transports.upstream.walls.watchers import Watchers

pytestmark = [needs_walls, requirement("box.system")]

MOST = 1_024
_MODIFIED = 2


class _Calls(Listener):
    """Instead of the kernel's notifications: this process makes the calls, and gets the answers."""

    def __init__(self) -> None:
        self.value = 0

    def answer(self, made: InterceptedCall, error: int = 0) -> bool:
        self.value = -error
        return True

    def succeed(self, made: InterceptedCall, value: int) -> bool:
        self.value = value
        return True

    def give(self, made: InterceptedCall, fd: int, *, closes_on_exec: bool) -> None:
        self.value = os.dup(fd)


class Server:
    """A server behind a gate, in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = _Calls()
        self.refused = RefusalQueue()
        self._watchers = Watchers(self._calls, self.refused.add)
        self._files = FileCalls([Grant(path=str(folder), mode="rw")], self._calls, self.refused.add, self._watchers)
        self._made = 0

    def instance(self) -> int:
        self._watchers.decide(
            InterceptedCall(1, os.getpid(), numbers()["inotify_init1"], (os.O_CLOEXEC, 0, 0, 0, 0, 0))
        )
        assert self._calls.value > 0
        return self._calls.value

    def watch(self, instance: int, path: Path) -> int:
        """The watch, or an errno below zero."""
        name = ctypes.create_string_buffer(os.fsencode(path))
        arguments = (instance, ctypes.addressof(name), _MODIFIED, 0, 0, 0)
        self._files.decide(InterceptedCall(2, os.getpid(), numbers()["inotify_add_watch"], arguments))
        return self._calls.value

    def watch_new(self, instance: int, most: int = 10 * MOST) -> int:
        """Watch new files. How many were watched until an error."""
        for count in range(most):
            self._made += 1
            path = self._folder / str(self._made)
            path.touch()
            if self.watch(instance, path) < 0:
                return count
        return most


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(watchers, "_users_limit", lambda name: 8 * MOST)
    yield Server(tmp_path)


def test_a_server_has_a_share_of_the_watches_of_its_user(server: Server) -> None:
    """Of all its instances together, those that it has given elsewhere too."""
    one, two = server.instance(), server.instance()
    assert (server.watch_new(one, MOST - 100), server.watch_new(two)) == (MOST - 100, 100)
    assert server._calls.value == -errno.ENOSPC
    [refused] = server.refused.take(0.0, everything=True)
    assert refused["why"] == f"more than {MOST} watches of one server"
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"x"], [one])
        os.close(one)
        assert (server.watch_new(two), server.watch_new(server.instance())) == (0, 0)
    assert server.watch_new(two, 200) == 200, "nobody has the first one any more"


def test_watches_that_are_gone_can_be_had_again(server: Server, tmp_path: Path) -> None:
    """With their files, also from another instance; and a file that is watched again is counted once."""
    one, two = server.instance(), server.instance()
    assert (server.watch_new(one, 200), server.watch_new(two)) == (200, MOST - 200)
    for n in range(1, 151):
        (tmp_path / str(n)).unlink()
    assert server.watch_new(two) == 150
    for n in range(201, 301):
        (tmp_path / str(n)).unlink()
    for _ in range(3 * MOST):
        assert server.watch(one, tmp_path / "160") > 0
    assert server.watch_new(two) == 100


def test_only_instances_of_the_server_get_watches(server: Server, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, socket.socket() as other:
        found = [server.watch(fd, tmp_path) for fd in (file.fileno(), other.fileno(), 1 << 20)]
    assert found == [-errno.EINVAL, -errno.EINVAL, -errno.EBADF]
