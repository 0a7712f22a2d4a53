"""Attributes of files, and what the kernel counts for a user: answered by the gate for real processes behind walls."""

import errno
import resource
import shutil
from pathlib import Path

import pytest

from tests.processes.places import Place, needs_walls
from tests.requirements import requirement

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
attempts(
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
    mode_of_closed=lambda: os.chmod(closed, 0o777),
    mode_of_granted=lambda: os.chmod(read + "/file", 0),
    mode_of_granted_by_descriptor=lambda: os.fchmod(opened(read + "/file"), 0),
    mode_by_symlink=lambda: os.chmod(own + "/to_closed", 0),
    mode_by_dots=lambda: os.chmod("../closed/file", 0),
    mode_by_folder=lambda: os.chmod("file", 0, dir_fd=opened(closed, os.O_PATH)),
    mode_of_reaper=lambda: os.chmod(f"/proc/{os.getppid()}/fd/0", 0),
    mode_of_device=lambda: os.chmod("/dev/null", 0o666),
    setuid=lambda: os.chmod(own + "/file", 0o4755),
    setgid=lambda: os.fchmod(opened(own + "/file"), 0o2755),
    setuid_made=lambda: os.open(own + "/made", os.O_CREAT | os.O_WRONLY, 0o4755),
    setgid_made=lambda: os.mknod(own + "/made", 0o102755),
    setgid_folder=lambda: os.mkdir(own + "/group") or os.chmod(own + "/group", 0o2755),
    times_of_closed=lambda: os.utime(closed + "/file", (1, 1)),
    times_of_granted=lambda: os.utime(opened(read + "/file"), (1, 1)),
    watch_closed=lambda: watched(closed),
    watch_by_symlink=lambda: watched(own + "/to_closed"),
    owner_of_own=lambda: os.chown(own + "/file", 1, 1),
    owner_of_closed=lambda: os.lchown(closed, 1, 1),
    nothing=lambda: os.chmod(own + "/nothing", 0),
    no_path=lambda: call("chmod", None, 0),
    no_descriptor=lambda: os.fchmod(1_000, 0),
    label_of_own=lambda: os.setxattr(own + "/file", "user.x", b"1"),
    label_of_closed=lambda: os.setxattr(closed, "user.x", b"1"),
    label_read=lambda: os.getxattr(closed + "/file", "user.secret"),
    labels_read=lambda: os.listxattr(closed + "/file", follow_symlinks=False),
    labels_of_own=lambda: os.listxattr(opened(own + "/file")),
)
made = os.stat(own + "/file")
print(json.dumps(["made", [made.st_mode & 0o7777, made.st_mtime_ns]]))
"""


@requirement("box.files")
def test_attributes_of_files_that_are_not_granted_stay_as_they_are(place: Place) -> None:
    paths = (place.closed, place.closed / "file", place.read, place.read / "file")
    before = [(path.stat().st_mode, path.stat().st_mtime_ns, path.stat().st_uid) for path in paths]
    tried = place.tries(ATTRIBUTES)
    assert tried.pop("made") == [0o644, 7]
    errors = {name: error for name, error in tried.items() if error}
    assert set(errors) == {*tried} - {
        "mode_of_own", "mode_in_folder", "mode_by_descriptor", "mode_of_cwd", "times_of_own", "times_by_descriptor",
        "mode_by_own_name", "times_of_symlink", "mode_of_memory", "mode_of_pipe", "copy_of_granted", "watch_own",
        "watch_granted", "setgid_folder", "labels_of_own", "mode_by_own_name_in_proc", "mode_without_following",
        "mode_of_own_pipe", "mode_of_output",
    }  # fmt: skip
    set_id = ("setuid", "setgid", "setuid_made", "setgid_made")
    assert [errors.pop(name) for name in set_id] == ["EPERM"] * 4
    special = {"owner_of_own": "EPERM", "owner_of_closed": "EPERM", "nothing": "ENOENT", "no_path": "EFAULT"}
    special |= {"label_read": "ENOTSUP", "labels_read": "ENOTSUP"}
    special |= {"no_descriptor": "EBADF", "label_of_own": "ENOTSUP", "label_of_closed": "ENOTSUP"}
    assert {name: errors.pop(name) for name in special} == special
    assert set(errors.values()) == {"EACCES"}
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
