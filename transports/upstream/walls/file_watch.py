"""Watch which files a sandboxed process opens, executes, makes and removes, and report uses that its walls refuse.

This module decides nothing: Landlock decides, but does not report. So the gate looks at each system call, and then the
kernel executes it. If a process changes an argument meanwhile, only a report is wrong. Each of these calls costs a
notification, so files are only watched if the walls say so (`Walls.watch`)."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from transports.upstream.walls.gate_reports import Refused
from transports.upstream.walls.intercepted_calls import InterceptedCall, Listener, read_path, signed
from transports.upstream.walls.raw_system_calls import numbers
from transports.upstream.walls.resolved_paths import is_within, without_links
from transports.upstream.walls.wall_specification import Grant, Walls

_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_O_PATH, _O_TMPFILE = 0x20_0000, 0x40_0000
_MOST_REMEMBERED: Final = 4_096
_UNWATCHED: Final = ("/proc/", "/dev/fd/", "/dev/std")
"""Prefixes of paths that are not watched, because they mean another file in each process."""

_WHY: Final = {"r": "not granted", "w": "not granted to be written", "x": "not granted to be executed"}

Use = tuple[str, str]
"""The use of a file: its path without symlinks, and a letter of `Grant.mode`."""


def watches(walls: Walls, landlock: int) -> bool:
    """Return True if the gate is informed of system calls on files, as `walls.watch` says. `landlock` is the kernel's
    version of Landlock. Before version 3, the gate itself decides some of these calls, so files are not watched for
    refusals alone."""
    return walls.watch == "everything" or (walls.watch == "refused" and landlock >= 3)


class FileWatch:
    """Watch the files of one server. `touched` is called with each use, `refused` with each use that no grant allows.
    `numbers` are the system calls that are watched."""

    def __init__(
        self, grants: Sequence[Grant], listener: Listener, refused: Refused, touched: Callable[[str, str], None] | None
    ) -> None:
        self._granted = {letter: tuple(one.path for one in grants if letter in one.mode) for letter in _WHY}
        self._listed = {one.path for one in grants if "l" in one.mode}
        self._listener = listener
        self._refused = refused
        self._touched = touched
        self._allowed: dict[tuple[int, bytes, int], None] = {}  # allowed calls with absolute paths, oldest first
        at = _AT_FDCWD
        handlers: dict[str, Callable[[InterceptedCall, tuple[int, ...]], Iterable[Use]]] = {
            "open": lambda made, given: self._opened(made, at, given[0], given[1]),
            "openat": lambda made, given: self._opened(made, given[0], given[1], given[2]),
            "creat": lambda made, given: self._opened(made, at, given[0], os.O_CREAT | os.O_WRONLY),
            "execve": lambda made, given: _existing(made, at, given[0], "x"),
            "execveat": lambda made, given: (
                () if given[4] & _AT_EMPTY_PATH else _existing(made, given[0], given[1], "x")
            ),
            "truncate": lambda made, given: _existing(made, at, given[0], "w"),
            "mkdir": lambda made, given: _made(made, at, given[0]),
            "mkdirat": lambda made, given: _made(made, given[0], given[1]),
            "mknod": lambda made, given: _made(made, at, given[0]),
            "mknodat": lambda made, given: _made(made, given[0], given[1]),
            "symlink": lambda made, given: _made(made, at, given[1]),
            "symlinkat": lambda made, given: _made(made, given[1], given[2]),
            "unlink": lambda made, given: _removed(made, at, given[0]),
            "unlinkat": lambda made, given: _removed(made, given[0], given[1]),
            "rmdir": lambda made, given: _removed(made, at, given[0]),
            "rename": lambda made, given: _moved(made, (at, given[0]), (at, given[1])),
            "renameat": lambda made, given: _moved(made, given[:2], given[2:4]),
            "renameat2": lambda made, given: _moved(made, given[:2], given[2:4]),
            "link": lambda made, given: _moved(made, (at, given[0]), (at, given[1])),
            "linkat": lambda made, given: _moved(made, given[:2], given[2:4]),
        }
        table = numbers()
        self._handlers = {table[name]: handler for name, handler in handlers.items() if name in table}
        self.numbers = self._handlers.keys()

    def decide(self, made: InterceptedCall) -> None:
        """Report the files that a system call uses, then let the kernel execute the call."""
        try:
            for path, letter in self._handlers[made.number](made, made.arguments):
                if self._touched is not None:
                    self._touched(letter, path)
                if not is_within(path, self._granted[letter]) and not (letter == "r" and path in self._listed):
                    self._refused("file", path, _WHY[letter])
        except (OSError, ValueError):  # the kernel will say what is wrong
            pass
        finally:
            self._listener.proceed(made)

    def _opened(self, made: InterceptedCall, folder: int, pointer: int, flags: int) -> Iterator[Use]:
        if flags & _O_PATH == _O_PATH:  # it only names the file
            return
        raw = read_path(made.thread, pointer)
        known = (made.number, raw, flags) if raw.startswith(b"/") else None
        if known in self._allowed:
            return
        path = _path(made.thread, folder, raw, follows=not flags & os.O_NOFOLLOW)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & (os.O_TRUNC | _O_TMPFILE)
        uses: list[Use] = []
        if not path:
            return
        if os.path.lexists(path):
            uses += [(path, "r")] if flags & os.O_ACCMODE != os.O_WRONLY else []
            uses += [(path, "w")] if writes else []
        elif flags & os.O_CREAT:
            uses.append((os.path.dirname(path), "w"))
        else:
            return
        if known is not None and all(is_within(path, self._granted[letter]) for path, letter in uses):
            self._allowed[known] = None
            if len(self._allowed) > _MOST_REMEMBERED:
                del self._allowed[next(iter(self._allowed))]
        yield from uses


def _existing(made: InterceptedCall, folder: int, pointer: int, letter: str) -> Iterator[Use]:
    path = _path(made.thread, folder, read_path(made.thread, pointer), follows=True)
    if path and os.path.lexists(path):
        yield path, letter


def _made(made: InterceptedCall, folder: int, pointer: int) -> Iterator[Use]:
    """Yield what a system call that makes a file uses: a write to the folder around the file. Yield nothing if the file
    exists, because the call then fails. `folder` and `pointer` (to the path) are arguments of the call, as in
    mkdirat(2)."""
    path = _path(made.thread, folder, read_path(made.thread, pointer), follows=False)
    if path and not os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        yield os.path.dirname(path), "w"


def _removed(made: InterceptedCall, folder: int, pointer: int) -> Iterator[Use]:
    path = _path(made.thread, folder, read_path(made.thread, pointer), follows=False)
    if path and os.path.lexists(path):
        yield os.path.dirname(path), "w"


def _moved(made: InterceptedCall, source: Sequence[int], target: Sequence[int]) -> Iterator[Use]:
    ends = [_path(made.thread, folder, read_path(made.thread, at), follows=False) for folder, at in (source, target)]
    if all(ends) and os.path.lexists(ends[0]):
        yield from ((os.path.dirname(path), "w") for path in ends)


def _path(thread: int, folder: int, raw: bytes, *, follows: bool) -> str:
    """Return the absolute path that a thread means by `raw`, a path in its system call; empty if `raw` is empty or
    begins like a path that is not watched (`_UNWATCHED`). A relative path begins in `folder`, a descriptor of the
    thread or AT_FDCWD. Symlinks are resolved, but the last part only if `follows`. Raises `OSError`, `ValueError`."""
    path = os.fsdecode(raw)
    if not path or path.startswith(_UNWATCHED):
        return ""
    if not path.startswith("/"):
        fd = signed(folder)
        base = os.readlink(f"/proc/{thread}/cwd" if fd == _AT_FDCWD else f"/proc/{thread}/fd/{fd}")
        path = os.path.join(base, path)
    if follows:
        return without_links(path)
    above, name = os.path.split(path.rstrip("/"))
    return os.path.join(without_links(above), name)
