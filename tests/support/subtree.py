"""A cgroup (version 2) that is delegated to a user, as systemd does it. Needs root, and a writable hierarchy."""

import contextlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def _hierarchy() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") and fields.split()[3] == "/":
            return Path(fields.split()[4])
    return None


@cache
def why_no_subtree() -> str:
    """Why these tests cannot make one here; empty if they can."""
    root = _hierarchy()
    if root is None:
        return "this system has no cgroups of version 2"
    try:
        with delegated(None):
            return ""
    except OSError as error:
        return f"no cgroup can be made in {root}: {error.strerror}"


def controllers_here() -> frozenset[str]:
    """Those of `memory`, `pids` and `cpu` that a subtree here can have."""
    root = _hierarchy()
    text = "" if root is None else (root / "cgroup.controllers").read_text(encoding="ascii")
    return frozenset(text.split()) & {"memory", "pids", "cpu"}


@contextlib.contextmanager
def delegated(user: int | None) -> Iterator[Path]:
    """The folder of a cgroup that is marked as delegated to the user, or to root. Empty of processes at the end."""
    root = _hierarchy()
    assert root is not None
    for controller in controllers_here():
        (root / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
    folder = root / f"delegated-{os.urandom(6).hex()}"
    folder.mkdir()
    try:
        os.setxattr(folder, "user.delegate", b"1")
        if user is not None:
            for path in (folder, *(folder / f"cgroup.{name}" for name in ("procs", "subtree_control", "threads"))):
                os.chown(path, user, user)
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder / "cgroup.kill").write_text("1", encoding="ascii")
    deadline = time.monotonic() + 5
    while "populated 1" in (folder / "cgroup.events").read_text(encoding="ascii") and time.monotonic() < deadline:
        time.sleep(0.005)
    for path, _, _ in os.walk(folder, topdown=False):
        os.rmdir(path)
