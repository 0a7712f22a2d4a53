"""Attributes and watches of files, and what the kernel counts for a user: answered by the gate for walled servers."""

import ctypes
import errno
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.places import Place, needs_walls
from tests.requirements import requirement
from transports.upstream.walls import file_calls_beyond_landlock
from transports.upstream.walls.file_calls_beyond_landlock import FileCalls, InotifyCalls
from transports.upstream.walls.gate_reports import RefusalQueue
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener
from transports.upstream.walls.raw_system_calls import numbers
from transports.upstream.walls.wall_specification import Grant

pytestmark = needs_walls

ATTRIBUTES = """
import ctypes, shutil, tempfile
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result
def opened(path, flags=os.O_RDONLY):
    return os.open(path, flags)
watcher = call("inotify_init")
watched = lambda path: call("inotify_add_watch", watcher, path.encode(), 0x100)
os.symlink(closed + "/file", own + "/to_closed")
attempts("",
    mode_of_own=lambda: os.chmod(own + "/file", 0o640),
    mode_in_folder=lambda: os.chmod("file", 0o640, dir_fd=opened(own)),
    mode_by_descriptor=lambda: os.fchmod(opened(own + "/file"), 0o600),
    mode_of_cwd=lambda: os.chmod("file", 0o644),
    mode_by_own_name=lambda: os.chmod(f"/proc/self/fd/{opened(own + '/file')}", 0o644),
    mode_by_own_name_in_proc=lambda: os.chmod(f"self/fd/{opened(own + '/file')}", 0o644, dir_fd=opened("/proc")),
    mode_without_following=lambda: call("fchmodat", -100, (own + "/file").encode(), 0o644, 0x100),
    mode_of_own_pipe=lambda: os.chmod(f"/dev/fd/{os.pipe()[1]}", 0o600),
    mode_of_output=lambda: os.chmod("/dev/stdout", 0o600),
    times_of_own=lambda: os.utime(own + "/file", (1_000, 2_000)),
    times_by_descriptor=lambda: os.utime(opened(own + "/file"), ns=(5, 7)),
    times_of_symlink=lambda: os.utime(own + "/true", (1, 1), follow_symlinks=False),
    mode_of_memory=lambda: os.fchmod(os.memfd_create("m"), 0o600),
    mode_of_pipe=lambda: os.fchmod(os.pipe()[0], 0o600),
    copy_of_granted=lambda: shutil.copytree(read, own + "/copy", symlinks=True),
    watch_own=lambda: watched(own) == 1 or 1 / 0,
    watch_granted=lambda: watched(read) == 2 or 1 / 0,
    setgid_folder=lambda: os.mkdir(own + "/group") or os.chmod(own + "/group", 0o2755),
    labels_of_own=lambda: os.listxattr(opened(own + "/file")),
)
attempts("EACCES",
    mode_of_closed=lambda: os.chmod(closed, 0o777),
    mode_of_granted=lambda: os.chmod(read + "/file", 0),
    mode_of_granted_by_descriptor=lambda: os.fchmod(opened(read + "/file"), 0),
    mode_by_symlink=lambda: os.chmod(own + "/to_closed", 0),
    mode_by_dots=lambda: os.chmod("../closed/file", 0),
    mode_by_folder=lambda: os.chmod("file", 0, dir_fd=opened(closed, os.O_PATH)),
    mode_of_reaper=lambda: os.chmod(f"/proc/{os.getppid()}/fd/0", 0),
    mode_of_device=lambda: os.chmod("/dev/null", 0o666),
    times_of_closed=lambda: os.utime(closed + "/file", (1, 1)),
    times_of_granted=lambda: os.utime(opened(read + "/file"), (1, 1)),
    watch_closed=lambda: watched(closed),
    watch_by_symlink=lambda: watched(own + "/to_closed"),
)
attempts("EPERM",
    setuid=lambda: os.chmod(own + "/file", 0o4755),
    setgid=lambda: os.fchmod(opened(own + "/file"), 0o2755),
    setuid_made=lambda: os.open(own + "/made", os.O_CREAT | os.O_WRONLY, 0o4755),
    setgid_made=lambda: os.mknod(own + "/made", 0o102755),
    owner_of_own=lambda: os.chown(own + "/file", 1, 1),
    owner_of_closed=lambda: os.lchown(closed, 1, 1),
)
attempts("ENOTSUP",
    label_of_own=lambda: os.setxattr(own + "/file", "user.x", b"1"),
    label_of_closed=lambda: os.setxattr(closed, "user.x", b"1"),
    label_read=lambda: os.getxattr(closed + "/file", "user.secret"),
    labels_read=lambda: os.listxattr(closed + "/file", follow_symlinks=False),
)
attempts("ENOENT", nothing=lambda: os.chmod(own + "/nothing", 0))
attempts("EFAULT", no_path=lambda: call("chmod", None, 0))
attempts("EBADF", no_descriptor=lambda: os.fchmod(1_000, 0))
made = os.stat(own + "/file")
print(json.dumps(["made", [made.st_mode & 0o7777, made.st_mtime_ns]]))
"""


@requirement("box.files")
def test_attributes_of_files_that_are_not_granted_stay_as_they_are(place: Place) -> None:
    paths = (place.closed, place.closed / "file", place.read, place.read / "file")
    before = [(path.stat().st_mode, path.stat().st_mtime_ns, path.stat().st_uid) for path in paths]
    assert place.unexpected(ATTRIBUTES) == [["made", [0o644, 7]]]
    assert [(path.stat().st_mode, path.stat().st_mtime_ns, path.stat().st_uid) for path in paths] == before


@requirement("box.files")
@pytest.mark.skipif(shutil.which("tar", path="/usr/bin:/bin") is None, reason="this machine has no tar")
def test_tar_extracts_a_folder_with_its_modes(place: Place) -> None:
    script = """
import tarfile
os.makedirs(own + "/packed/inner", 0o700, exist_ok=True)
os.chmod(own + "/packed/inner", 0o750)
open(own + "/packed/inner/x", "w").close()
with tarfile.open(own + "/packed.tar", "w") as archive: archive.add(own + "/packed", "unpacked")
tar = ["tar", "--no-same-owner", "-xpf", own + "/packed.tar", "-C", own]
print(subprocess.run(tar, env={"PATH": "/usr/bin:/bin"}, stderr=2).returncode)
print(os.stat(own + "/unpacked/inner").st_mode & 0o777)
"""
    outcome = place.run(script)
    assert (outcome.errors, outcome.said) == ([], [0, 0o750])


@requirement("box.system")
def test_it_takes_a_share_of_what_the_kernel_counts_for_its_user(place: Place) -> None:
    """Hidden in messages to itself, or given back, an inotify instance is counted as long as it is there."""
    script = """
import ctypes, resource
libc = ctypes.CDLL(None, use_errno=True)
def made(most=100_000):
    found = []
    while len(found) < most and (fd := libc.inotify_init1(0o2000000)) >= 0: found.append(fd)
    return found
most = made()
print(json.dumps(["most", len(most), ctypes.get_errno()]))
[os.close(fd) for fd in most]
most = made()
print(json.dumps(["again", len(most)]))
here, there = socket.socketpair()
socket.send_fds(here, [b"x"], most)
[os.close(fd) for fd in most]
print(json.dumps(["hidden", len(made())]))
print(json.dumps(["left", len(made(1)), libc.close(there.detach()), libc.close(here.detach()), len(made(3))]))
timers = 0
while libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0: timers += 1
print(json.dumps(["timers", timers]))
"""
    said = {name: values for name, *values in place.run(script).said}
    most = max(16, int(Path("/proc/sys/fs/inotify/max_user_instances").read_text("ascii")) // 8)
    assert (said["most"], said["again"], said["hidden"]) == ([most, errno.EMFILE], [most], [0])
    assert said["left"] == [0, 0, 0, 3]
    assert 0 < said["timers"][0] <= resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] // 4


# -- the share of one server in the inotify watches of its user, with the kernel's own instances


MOST = 1_024
_MODIFIED = 2


class _Calls(Listener):
    """Instead of the kernel's notifications: this process makes the calls, and gets the answers."""

    def __init__(self) -> None:
        self.value = 0

    def answer(self, made: InterceptedCall, error: int = 0) -> None:
        self.value = -error

    def succeed(self, made: InterceptedCall, value: int) -> None:
        self.value = value

    def give(self, made: InterceptedCall, fd: int, *, closes_on_exec: bool) -> None:
        self.value = os.dup(fd)


class Server:
    """A server behind a gate, in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = _Calls()
        self.refused = RefusalQueue()
        self._inotify = InotifyCalls(self._calls, self.refused.add)
        self._files = FileCalls([Grant(path=str(folder), mode="rw")], self._calls, self.refused.add, self._inotify)
        self._made = 0

    def instance(self) -> int:
        self._inotify.decide(InterceptedCall(1, os.getpid(), numbers()["inotify_init1"], (os.O_CLOEXEC, 0, 0, 0, 0, 0)))
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
    monkeypatch.setattr(file_calls_beyond_landlock, "_users_limit", lambda name: 8 * MOST)
    yield Server(tmp_path)


@requirement("box.system")
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


@requirement("box.system")
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


@requirement("box.system")
def test_only_instances_of_the_server_get_watches(server: Server, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, socket.socket() as other:
        found = [server.watch(fd, tmp_path) for fd in (file.fileno(), other.fileno(), 1 << 20)]
    assert found == [-errno.EINVAL, -errno.EINVAL, -errno.EBADF]
