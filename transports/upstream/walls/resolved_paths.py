"""Resolve paths in the way that a sandboxed process sees them, and open files by a path only to name them (O_PATH). The
gate and the reaper may open more files than the process may. So they resolve a path first, and then open the resolved
path without following symlinks. If the process puts a symlink there in between, opening fails."""

import errno
import os
import struct
from collections.abc import Iterable
from typing import Final

from transports.upstream.walls.raw_system_calls import call

_NO_MAGIC_LINKS, _NO_SYMLINKS = 0x02, 0x04
_O_PATH: Final = 0o10000000  # Linux: this module is loaded, and not used, on other systems
_HOW: Final = struct.pack("=QQQ", _O_PATH | os.O_CLOEXEC, 0, _NO_MAGIC_LINKS | _NO_SYMLINKS)  # flags, mode, resolve
_CURRENT_FOLDER: Final = -100

_OWN: Final = tuple(
    (tuple(path.split(b"/")), place.split(b"/"))
    for path, place in (
        (b"proc/self", b""),
        (b"proc/thread-self", b""),
        (b"dev/fd", b"fd"),
        (b"dev/stdin", b"fd/0"),
        (b"dev/stdout", b"fd/1"),
        (b"dev/stderr", b"fd/2"),
    )
)
"""Paths that mean another file in each process, with the place in the process's folder in /proc where each is found."""


def as_meant(thread: int, path: bytes) -> bytes:
    """Return a path that means the same file for this process as `path` does for the thread. Symlinks are not
    resolved."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")] if path.startswith(b"/") else []
    for own, place in _OWN:
        if tuple(parts[: len(own)]) == own:
            found = [b"/proc/%d" % thread, *filter(None, place), *parts[len(own) :]]
            return b"/".join(found) + (b"/" if path.endswith((b"/", b"/.")) else b"")
    return path


def resolved(path: str, thread: int) -> str:
    """Return the path with symlinks resolved. A relative path begins in the thread's working directory. Raises
    `OSError`."""
    if not path.startswith("/"):
        path = os.path.join(os.readlink(f"/proc/{thread}/cwd"), path)
    return without_links(os.fsdecode(as_meant(thread, os.fsencode(path))))


def without_links(path: str) -> str:
    """Return the path with symlinks resolved. Raises `OSError` (ELOOP) for a very long chain of links: the kernel
    follows 40, `realpath` any number, by recursion."""
    try:
        return os.path.realpath(path)
    except RecursionError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Return True if the resolved path is one of the paths or lies below one."""
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in folders)


def open_path(path: str) -> int:
    """Return a descriptor that only names the file (O_PATH). Raises `OSError`: the path does not exist, or leads
    through a symlink. The file name of the error is the path."""
    try:
        return call("openat2", _CURRENT_FOLDER, os.fsencode(path), _HOW, len(_HOW))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
