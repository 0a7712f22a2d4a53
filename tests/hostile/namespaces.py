"""The harness inside namespaces of its own: what its servers do reaches neither the machine nor its network.

A process that signals everybody, fills disks, listens and connects needs a world that may break. `enter` starts the
program again inside mount, network, pid, ipc and uts namespaces; `build` covers folders and makes the network there.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MARK: Final = "MCP_GATEWAY_HOSTILE_WORLD"
_KINDS: Final = ("--mount", "--net", "--pid", "--ipc", "--uts")
_ROOT: Final = Path(__file__).parents[2]
_NEEDED: Final = tuple(
    sorted({Path(path).resolve() for path in (sys.prefix, sys.base_prefix, str(_ROOT))} | {Path(sys.prefix).absolute()})
)
"""Folders without which this program cannot run."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, *_KINDS, "--fork", "--kill-child", "--mount-proc"]


def missing() -> str:
    """Why this user can make no such world here; empty where it can."""
    if sys.platform != "linux":
        return "only Linux has namespaces"
    try:
        tried = subprocess.run([*_unshare(), "ip", "link", "add", "type", "veth"], capture_output=True, check=False)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    words = tried.stderr.decode(errors="replace").strip()
    return f"this user can make no namespaces here, and the attacks would reach the machine: {words}" if words else ""


def is_inside() -> bool:
    """Whether this process is the first of its own namespaces."""
    return os.environ.get(_MARK) == "1" and os.getpid() == 1


def enter(arguments: Sequence[str]) -> int:
    """Run this program inside the namespaces, and return its exit code. Everything ends with it."""
    command = [*_unshare(), sys.executable, "-m", "tests.hostile.run", *arguments]
    env = {**os.environ, _MARK: "1", "PYTHONPATH": str(_ROOT)}
    with subprocess.Popen(command, env=env, cwd=_ROOT) as inside:
        signal.signal(signal.SIGTERM, lambda *_: inside.kill())  # unshare(1) itself waits for the end
        return inside.wait()


def cover(folder: str, *, size_mb: int, mode: str = "0755") -> None:
    """An empty folder of that size in its place. What this program needs below it stays."""
    needed = [path for path in _NEEDED if path.is_relative_to(folder) and path != Path(folder)]
    held = [os.open(path, os.O_PATH) for path in needed]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode={mode}", "none", folder], check=True)
    for path, descriptor in zip(needed, held, strict=True):
        if not path.exists():
            path.mkdir(parents=True)
            _bind(f"/proc/self/fd/{descriptor}", str(path))
        os.close(descriptor)


def cover_closed() -> None:
    """Let an ordinary user reach what this program needs: some of it may lie in a home folder."""
    for path in _NEEDED:
        for folder in reversed(path.parents):
            if not folder.stat().st_mode & 0o001:
                cover(str(folder), size_mb=1)
                break


def place(path: str, text: str, mode: int = 0o644) -> None:
    """A file with that text in the place of another, which stays as it is outside."""
    target = Path(path).resolve()
    mine = Path("/run", "placed-" + path.strip("/").replace("/", "-"))
    mine.write_text(text, encoding="utf-8")
    mine.chmod(mode)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    _bind(str(mine), str(target))


def _bind(source: str, target: str) -> None:
    """The program mount(8) would follow the link of a descriptor, to where the folder is covered."""
    if _libc.mount(source.encode(), target.encode(), None, 0x1000, None):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def unshare_network() -> None:
    """Give the calling thread, and what it starts, a network of its own."""
    new_network = 0x4000_0000
    if _libc.unshare(new_network):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
