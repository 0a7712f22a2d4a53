"""Store fetched packages in folders on disk. Knows nothing of npm and uv.

The folder of a package has a record, `current-1.json`, and *copies*: folders with random names, each with one fetched
state of the package. A copy is complete before the record names it, and the record is replaced in one step. So nobody
reads half a package, even if a gateway is killed. Gateways on one machine share the folders. A lock on the folder lets
only one of them fetch. A lock on each copy, held while the copy is used, keeps the others from removing it.
"""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from transports.jsonrpc import UNREADABLE

logger = logging.getLogger(__name__)

RECORD: Final = "current-1.json"
"""The file name of the record. The number is the version of its format."""
LOCK: Final = "lock"
USED: Final = "used"
_PRIVATE: Final = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPackage:
    """A fetched package, and how its program is started. This is what the record of a folder contains."""

    argv: tuple[str, ...]
    """The command that starts the program, without the program's arguments."""
    env: dict[str, str]
    """The variables that npx or uvx would add to the program's environment."""
    path: tuple[str, ...]
    """The folders that npx or uvx would put in front of PATH."""
    read: tuple[str, ...]
    """The files and folders of the program, which sessions may read."""
    content: str
    """A digest of the package's content. Two fetches with equal digests have brought the same."""
    copy: str
    """The name of the folder of the copy."""
    fetched_at: float
    """A Unix time."""

    @property
    def is_whole(self) -> bool:
        """Return True if the program, the interpreter that runs it, and all paths in `read` still exist."""
        return os.access(self.argv[0], os.X_OK) and all(os.path.exists(one) for one in (*self.argv[:2], *self.read))


class PackageFolder:
    """The folder of one package, with its record and its copies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create the folder. Raises `OSError`."""
        self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def current(self) -> FetchedPackage | None:
        """Return the package that the record names. Return None if there is no record, or files of the package are
        missing."""
        try:
            package = msgspec.json.decode((self.path / RECORD).read_bytes(), type=FetchedPackage)
        except (OSError, *UNREADABLE):
            return None
        return package if package.argv and package.is_whole else None

    def publish(self, package: FetchedPackage) -> None:
        """Replace the record, so that this package becomes the current one. Raises `OSError`."""
        new = self.path / f"{secrets.token_hex(6)}.new"
        with new.open("xb") as file:
            file.write(msgspec.json.encode(package))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / RECORD)

    def new_copy(self) -> Path:
        """Create the folder of another copy, and return its path. Raises `OSError`."""
        copy = self.path / secrets.token_hex(6)
        copy.mkdir(mode=_PRIVATE)
        (copy / USED).touch()
        return copy

    def try_lock(self) -> int | None:
        """Acquire the lock for fetching. Return its descriptor, which the caller closes; None if another gateway has
        the lock. Raises `OSError`."""
        return _lock(self.path / LOCK, fcntl.LOCK_EX, os.O_CREAT)

    def use(self, package: FetchedPackage) -> Callable[[], None]:
        """Lock the copy of a package so that no gateway removes it. Return a function that unlocks it. Raises `OSError`
        if the copy is being removed now."""
        lock = _lock(self.path / package.copy / USED, fcntl.LOCK_SH)
        if lock is None:
            raise OSError(errno.ESTALE, "the copy is being removed")
        return lambda: os.close(lock)

    def remove_unused(self) -> None:
        """Remove each copy that is neither current nor in use. The caller holds the lock for fetching."""
        current = self.current()
        for path in tuple(self.path.iterdir()):
            if path.is_dir() and not (current and path.name == current.copy):
                self._remove_if_unused(path)
            elif path.suffix == ".new":
                path.unlink(missing_ok=True)

    def _remove_if_unused(self, copy: Path) -> None:
        try:
            lock = _lock(copy / USED, fcntl.LOCK_EX)
        except FileNotFoundError:
            lock = -1  # half made, or half removed
        except OSError as error:
            logger.warning("%s could not be removed: %s", copy, error.strerror)
            return
        if lock is None:
            return
        try:
            remove(copy)
        finally:
            if lock >= 0:
                os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder that untrusted programs have written to. Log a warning if a part of it cannot be removed."""
    for _ in range(2):
        try:
            folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)  # never what a link leads to
        except FileNotFoundError:
            return
        except (OSError, RecursionError):
            for inside, _, _ in os.walk(folder):  # a package may have taken permissions away
                with contextlib.suppress(OSError):
                    if not os.path.islink(inside):
                        Path(inside).chmod(_PRIVATE)
        else:
            return
    logger.warning("%s could not be removed", folder)


def packages_root() -> Path:
    """Return the absolute path of the folder of all packages: `mcp-session-gateway/packages` in `$XDG_CACHE_HOME`, by
    default `~/.cache`; below the temporary folder if this process cannot write there. Gateways of one user on one
    machine share it."""
    own = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(own) if own.startswith("/") else Path(os.environ.get("HOME") or "/nonexistent") / ".cache"
    if not _is_usable(base):
        base = Path(tempfile.gettempdir(), f"mcp-session-gateway-{os.geteuid()}-cache")
    return base / "mcp-session-gateway" / "packages"


def _is_usable(folder: Path) -> bool:
    """Return whether this process can create files in the folder, or could create the folder itself if it is missing.
    Users of services often have no home folder."""
    for one in (folder, *folder.parents):
        if one.exists():
            return one.is_dir() and os.access(one, os.W_OK | os.X_OK)
    return False


def usable_root(path: Path) -> str:
    """Create the folder of all packages. If other users could write programs into it, return why it must not be used;
    otherwise an empty string."""
    try:
        path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by other users"
    return ""


def _lock(path: Path, kind: int, flags: int = 0) -> int | None:
    """Lock a file, and return the descriptor that holds the lock; None if another holder prevents it. `kind` is
    `fcntl.LOCK_EX` or `fcntl.LOCK_SH`, and `flags` are further flags of `os.open`. Raises `OSError`, also if the file
    is removed meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        is_there = os.fstat(descriptor).st_nlink > 0
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    if not is_there:
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return descriptor
